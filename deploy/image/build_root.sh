#!/bin/bash
# Build the server's root file system: build_root.sh DESTINATION
#
# The one recipe for deploy/Dockerfile and for `make image-root`, which needs no container engine. The root holds the
# Debian packages of packages.txt, extracted and never configured, the wheels of requirements.txt, and ours. So there is
# no shell, no package manager, no compiler and no pip in it, and nothing has to be removed that could be forgotten.
#
# It runs on Debian 12, since the wheels are chosen by that Debian's Python and run by it, and as root, since all files
# must belong to root. It writes to a temporary folder and to DESTINATION, which appears whole or not at all.
set -euo pipefail
umask 022

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
REPOSITORY=$(cd -- "$HERE/../.." && pwd)
readonly HERE REPOSITORY
readonly PYTHON=/usr/bin/python3.11
readonly PACKAGES_AT=usr/local/lib/python3.11/dist-packages

main() {
    [[ $# -eq 1 ]] || fail "usage: build_root.sh DESTINATION"
    check_builder
    local destination work
    destination=$(realpath --canonicalize-missing -- "$1")
    mkdir -p -- "$(dirname -- "$destination")"
    work=$(realpath -- "$(mktemp -d -- "$(dirname -- "$destination")/.image-root.XXXXXX")")
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf -- '$work'" EXIT
    mkdir -m 755 "$work/root"
    extract_debian_packages "$work" "$work/root"
    install_python_packages "$work" "$work/root"
    remove_what_nothing_runs "$work/root"
    gather_certificates "$work/root"
    name_users_and_mounts "$work/root"
    compile_modules "$work/root"
    rm -rf -- "$destination"
    mv -- "$work/root" "$destination"
}

fail() {
    echo "build_root.sh: $*" >&2
    exit 1
}

check_builder() {
    grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release ||
        fail "the root is made of Debian 12 (bookworm) and is built on it; elsewhere use deploy/Dockerfile"
    [[ $EUID -eq 0 ]] || fail "run this as root: the files of the root must belong to root"
    "$PYTHON" -m pip --version >/dev/null 2>&1 || fail "needs pip of $PYTHON: apt-get install python3-pip"
}

# The builder's sources, but lists and a state of their own: what is installed in the builder has no say in what comes.
extract_debian_packages() {
    local work=$1 root=$2 package
    local options=(
        -q=2 -o "Dir::State=$work/apt" -o Dir::State::status=/dev/null -o "Dir::Cache=$work/apt"
        -o APT::Sandbox::User=root # the temporary folder is not open to the user _apt
    )
    mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/debs" "$root/var/lib/dpkg/status.d"
    apt-get "${options[@]}" update
    grep -o '^[^# ]*' "$HERE/packages.txt" | (cd "$work/debs" && xargs apt-get "${options[@]}" download)
    for package in "$work"/debs/*.deb; do
        dpkg-deb --extract "$package" "$root"
        # Where scanners of images without dpkg look for what is installed.
        dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
    done
}

install_python_packages() {
    local work=$1 root=$2
    local pip=("$PYTHON" -m pip -qq --disable-pip-version-check)
    # A copy: building compiles the row kernels beside their source.
    mkdir "$work/source"
    (cd "$REPOSITORY" && tar -c --exclude=__pycache__ --exclude='*.so' \
        pyproject.toml hatch_build.py README.md LICENSE proto client dataplane_server) | tar -x -C "$work/source"
    "${pip[@]}" wheel --no-deps --wheel-dir "$work/ours" "$work/source"
    "${pip[@]}" download --no-deps --only-binary=:all: --require-hashes --dest "$work/wheels" \
        --requirement "$HERE/requirements.txt"
    "${pip[@]}" install --root "$root" --root-user-action=ignore --break-system-packages --ignore-installed --no-index \
        --no-deps --no-compile --no-warn-script-location "$work"/wheels/*.whl "$work"/ours/*.whl
    ln -s python3.11 "$root/usr/bin/python3" # the scripts' interpreter
}

remove_what_nothing_runs() (
    cd "$1"
    # Scripts of Debian packages (nothing could run them), documents but for licences, conversions for iconv.
    rm -rf bin sbin usr/sbin usr/lib/binfmt.d usr/lib/*/{audit,gconv} usr/share/zoneinfo/{localtime,posix,right}
    find usr/share -mindepth 1 -maxdepth 1 ! -name common-licenses ! -name ca-certificates ! -name doc ! -name zoneinfo \
        -exec rm -r {} +
    find usr/share/doc -type f ! -name copyright -delete
    find usr/share/doc -xtype l -delete
    find usr/share/doc -type d -empty -delete
    # Places of systems that people log in to.
    rm -rf boot home media mnt opt srv etc/{apt,ca-certificates,default,issue*,motd,profile.d,skel,update-motd.d}
    find var -mindepth 1 -maxdepth 1 ! -name lib -exec rm -r {} +
    # Modules whose libraries are not there, and tools of developers.
    rm -rf usr/lib/python3.11/lib-dynload/{_crypt,_curses*,_dbm,_sqlite3,nis,readline,_test*,_xxtest*,xx*}.cpython-*
    rm -rf usr/lib/python3.11/{curses,dbm,distutils,ensurepip,idlelib,lib2to3,pydoc_data,sqlite3,test,tkinter,turtledemo}
    find usr/local/bin -type f ! -name 'dataplane*' -delete
    cd "$PACKAGES_AT"
    rm -rf numpy/{f2py,distutils,_pyinstaller,_core/include,_core/lib}
    find . -type d -name tests -prune -exec rm -r {} +
    find . -type f \( -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' -o -name '*.c' -o -name '*.h' \) -delete
    # Where the wheels lay.
    find . -name direct_url.json -delete
    # Kernels for clients that have torch, which the root does not have.
    rm -f dataplane_client/row_kernels/_row_kernels.so
)

# What the scripts of ca-certificates and openssl would do: one file, and a link to it from where OpenSSL looks.
gather_certificates() {
    local root=$1
    mkdir -p "$root/etc/ssl/certs" "$root/usr/lib/ssl"
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    ln -s /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"
    rm -r "$root/usr/share/ca-certificates"
}

# Everybody may write to the two places where volumes are mounted, so that an image without volumes runs as well.
name_users_and_mounts() {
    local root=$1
    printf '%s\n' 'root:x:0:0:root:/root:/usr/sbin/nologin' \
        'dataplane:x:65532:65532:RL Data Plane:/nonexistent:/usr/sbin/nologin' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'dataplane:x:65532:' >"$root/etc/group"
    printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$root/etc/nsswitch.conf"
    mkdir -p "$root"/{dev,proc,sys,run/dataplane,tmp}
    chmod 1777 "$root/run/dataplane" "$root/tmp"
    chown -R 0:0 "$root"
}

# Nobody can write bytecode later, and nobody can change a source: it need not be compared with its bytecode.
compile_modules() {
    local root=$1
    "$PYTHON" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$root" -p / \
        "$root/usr/lib/python3.11" "$root/$PACKAGES_AT"
}

main "$@"
