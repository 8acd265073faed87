#!/usr/bin/env bash
# Build the images ledgermq:dev and ledgermq-spark:dev.   deploy/build_images.sh [--without-spark]
#
# The base image is BASE_IMAGE when that is set; else python:3.11-slim-bookworm when it is here or its registry answers; else
# one made here from Debian's packages. Wheels are collected outside and copied in. What did not change is not built again.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
work=build/image
with_spark=1
[ "${1:-}" = --without-spark ] && with_spark=0
public_base=python:3.11-slim-bookworm
export DOCKER_CLI_HINTS=false

say() { echo "image: $*"; }
die() { echo "image: $*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
has_image() { docker image inspect "$1" >/dev/null 2>&1; }

command -v docker >/dev/null || die "there is no docker command. Install it: sudo apt-get install -y docker.io"
docker info >/dev/null 2>&1 || die "the Docker engine does not answer. Start it: sudo systemctl start docker (or: sudo dockerd &)"
mkdir -p "$work"

# --- the base image --------------------------------------------------------------------------------------------

# Make a base image from Debian's packages: name, extra packages.
debian_base() {
  local name=$1 packages=$2 root mirror
  command -v debootstrap >/dev/null || die "no registry answers and debootstrap is missing. Install it: sudo apt-get install -y debootstrap"
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null | grep -m1 '/debian/\?$' || true)
  mirror=${mirror:-http://deb.debian.org/debian}
  root=$(mktemp -d "${TMPDIR:-/tmp}/ledgermq-base.XXXXXX")
  chmod 755 "$root"  # it becomes the root folder of the image, for other users too
  say "making $name from Debian's packages ($mirror); this takes a minute or two, once"
  as_root debootstrap --variant=minbase --include="$packages" bookworm "$root" "$mirror" >"$work/debootstrap.log" 2>&1 \
    || { tail -20 "$work/debootstrap.log" >&2; as_root rm -rf "$root"; die "debootstrap failed; the whole log: $work/debootstrap.log"; }
  as_root rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man
  as_root tar -C "$root" -c . | docker import --change 'CMD ["python3"]' - "$name" >/dev/null
  as_root rm -rf "$root"
}

spark_base=
if [ -n "${BASE_IMAGE:-}" ]; then
  base=$BASE_IMAGE
elif has_image "$public_base"; then
  base=$public_base
elif has_image ledgermq-base:bookworm; then
  base=ledgermq-base:bookworm
elif timeout 90 docker pull -q "$public_base" >/dev/null 2>&1; then
  base=$public_base
else
  say "no container registry answers"
  debian_base ledgermq-base:bookworm python3,python3-venv,python3-pip,ca-certificates
  base=ledgermq-base:bookworm
fi
if [ "$base" = ledgermq-base:bookworm ] && [ "$with_spark" = 1 ]; then
  spark_base=ledgermq-base-java:bookworm
  has_image "$spark_base" \
    || debian_base "$spark_base" python3,python3-venv,python3-pip,ca-certificates,openjdk-17-jre-headless,procps
fi
spark_base=${spark_base:-$base}

# --- the wheels: for the Python 3.11 of the base image, whatever Python this folder uses ------------------------

machine=$(uname -m)
target=(--only-binary=:all: --python-version 3.11 --implementation cp
  --platform "manylinux_2_36_$machine" --platform "manylinux_2_34_$machine" --platform "manylinux_2_28_$machine"
  --platform "manylinux_2_26_$machine" --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine"
  --platform any)
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

requirements() { # print the requirements of the base install and of one extra
  "$python" - "$1" <<'PY'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
wanted = project["dependencies"] + extras[sys.argv[1]]
wanted += extras["cli"] * ("ledgermq[cli]" in wanted)
print("\n".join(r for r in wanted if not r.startswith(("pyspark", "ledgermq["))))
PY
}

collect() { # folder, extra: download once per state of the pinned versions
  local folder=$1 extra=$2 stamp
  stamp=$(cat constraints.txt pyproject.toml | sha256sum | cut -c1-16)
  [ -e "$folder/.stamp-$stamp" ] && return
  say "collecting the wheels of [$extra]"
  rm -rf "$folder" && mkdir -p "$folder"
  requirements "$extra" >"$work/$extra.txt"
  pip download -q -c constraints.txt "${target[@]}" -d "$folder" -r "$work/$extra.txt"
  if [ "$extra" = spark ]; then
    pip wheel -q -c constraints.txt --no-deps -w "$folder" "$(grep '^pyspark==' constraints.txt)"
    pip download -q --no-deps "${target[@]}" -d "$folder" "$(grep '^py4j==' constraints.txt)"
  fi
  touch "$folder/.stamp-$stamp"
}

collect "$work/wheels" server
[ "$with_spark" = 1 ] && collect "$work/wheels-spark" spark
say "building the wheel of LedgerMQ"
rm -rf "$work/code" build/lib build/bdist.*
SOURCE_DATE_EPOCH=1600000000 pip wheel -q --no-deps -w "$work/code" .  # the same code gives the same bytes: a cached layer

# --- the images ------------------------------------------------------------------------------------------------

quiet_build() { # name, Dockerfile, base, more flags
  DOCKER_BUILDKIT=${DOCKER_BUILDKIT:-0} docker build -q -t "$1" -f "$work/$2" --build-arg BASE_IMAGE="$3" "${@:4}" "$work" \
    >"$work/build.log" 2>&1 || { tail -30 "$work/build.log" >&2; die "the build of $1 failed; the whole log: $work/build.log"; }
}

build_image() { # repository, Dockerfile, base: the dependencies keep a tag, so that they stay in the cache
  local old
  say "building $1:dev on $3"
  old=$(docker image inspect -f '{{.Id}}' "$1:dev" 2>/dev/null || true)
  quiet_build "$1:dependencies" "$2" "$3" --target dependencies
  quiet_build "$1:dev" "$2" "$3"
  if [ -n "$old" ] && [ "$old" != "$(docker image inspect -f '{{.Id}}' "$1:dev")" ]; then
    docker image rm "$old" >/dev/null 2>&1 || true  # in use by a container: it goes with the next build
  fi
}
cp deploy/Dockerfile deploy/Dockerfile.spark "$work"/
printf '**/.stamp-*\n*.log\n*.txt\nwheels-spark\n' >"$work/.dockerignore"
build_image ledgermq Dockerfile "$base"
if [ "$with_spark" = 1 ]; then
  printf '**/.stamp-*\n*.log\n*.txt\nwheels\n' >"$work/.dockerignore"
  build_image ledgermq-spark Dockerfile.spark "$spark_base"
fi
say "done: $(docker images --format '{{.Repository}}:{{.Tag}} ({{.Size}})' | grep -E '^ledgermq(-spark)?:dev' | paste -sd ' ')"
