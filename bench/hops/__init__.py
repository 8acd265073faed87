"""One message in flight, hop by hop: time stamps of all processes, put in order."""
