"""What `ledgermq.v1.AdminService` answers. (Its other modules still stand one folder up.)"""
