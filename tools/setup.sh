# Sourced by ./run and ./test: installs what the build needs and builds. Everything it prints goes
# to stderr, so that `./run generate ... > file` holds the program's output alone.

# ./run and ./test share one build folder, so both need all of these.
packages=(g++ cmake ninja-build ccache libhwy-dev libboost1.81-dev libboost-json1.81-dev
          libssl-dev libhwloc-dev liburing-dev libxxhash-dev libspdlog-dev prometheus-cpp-dev libcli11-dev libgtest-dev libgmock-dev python3 python3-numpy)
test_packages=(nodejs npm openssl dpkg-dev file lintian)  # ./test: clients, certificates, packages

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# Shows a command's output only when the command fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    echo "failed: $*" >&2
    return 1
  fi
  rm -f "$log"
}

is_installed() {
  # Packages of Node.js that are not Debian's hold npm, too.
  [[ $1 != npm ]] || ! command -v npm >/dev/null || return 0
  dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

# install_packages NAME...: Debian packages, only those that are missing. It never removes one:
# the distribution's default libboost-dev (1.74) cannot stand beside 1.81, and that is the
# machine owner's decision.
install_packages() {
  local name missing=()
  for name in "$@"; do
    is_installed "$name" || missing+=("$name")
  done
  ((${#missing[@]})) || return 0
  if ! command -v apt-get >/dev/null; then
    echo "missing, and there is no apt-get to install them (Debian 12): ${missing[*]}" >&2
    return 1
  fi
  echo "installing ${missing[*]}" >&2
  quietly as_root apt-get -q update
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
    --no-install-recommends --no-remove install "${missing[@]}"
}

# A second clone, or another build of the same one, finds what the first has compiled.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

# build FOLDER PRESET TARGET...: configures once, then lets ninja decide. Progress is shown only
# when there is something to do.
build() {
  local folder=$root/$1 preset=$2
  shift 2
  if [[ ! -f $folder/build.ninja ]]; then
    quietly cmake -S "$root" --preset "$preset" -B "$folder" \
      -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" || return
  fi
  ninja -C "$folder" -j "$(nproc)" "$@" 2>&1 |
    { grep --line-buffered -Ev '^ninja: (Entering|no work)|Re-checking globbed' >&2 || true; }
}
