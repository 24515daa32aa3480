#!/bin/bash
# Build the server's root file system: build_root.sh DESTINATION
# Pin the Debian packages to the versions that the archive has today: build_root.sh --pin
#
# deploy/Dockerfile and `make image-root`, which needs no container engine, both use this recipe. The root contains the
# Debian packages of packages.txt, extracted and never configured, the wheels of requirements.txt, and our wheel. So it
# has no shell, package manager, compiler or pip, and no cleanup step can miss anything. Versions are pinned: apt checks
# Debian's packages by the archive's signature, pip checks wheels, and what builds ours, by hash.
#
# Run it on Debian 12, because that Debian's Python selects and runs the wheels, and as root, because all files must
# belong to root. It writes to a temporary folder, to DESTINATION, which appears whole or not at all, and to
# DESTINATION.cdx.json, the list of what is in it (SBOM), which the image has as usr/share/sbom/NAME.cdx.json.
#
# The same pins, sources and SOURCE_DATE_EPOCH (seconds, the time of all files; default: now) give the same bytes.
set -euo pipefail
umask 022

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
REPOSITORY=$(cd -- "$HERE/../.." && pwd)
readonly HERE REPOSITORY
readonly PYTHON=/usr/bin/python3.11
readonly PACKAGES_AT=usr/local/lib/python3.11/dist-packages
readonly SBOM_AT=usr/share/sbom/rl-dataplane-server.cdx.json
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(date +%s)}

main() {
    [[ $# -eq 1 ]] || fail "usage: build_root.sh DESTINATION | --pin"
    check_builder
    if [[ $1 == --pin ]]; then
        pin_debian_packages
        return
    fi
    local destination work
    destination=$(realpath --canonicalize-missing -- "$1")
    mkdir -p -- "$(dirname -- "$destination")"
    work=$(realpath -- "$(mktemp -d -- "$(dirname -- "$destination")/.image-root.XXXXXX")")
    # shellcheck disable=SC2064  # expand the folder now
    trap "rm -rf -- '$work'" EXIT
    mkdir -m 755 "$work/root"
    extract_debian_packages "$work" "$work/root"
    install_python_packages "$work" "$work/root"
    remove_what_nothing_runs "$work/root"
    gather_certificates "$work/root"
    name_users_and_mounts "$work/root"
    compile_modules "$work/root"
    write_sbom "$work" "$work/root"
    find "$work/root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    rm -rf -- "$destination"
    cp -- "$work/root/$SBOM_AT" "$destination.cdx.json"
    mv -- "$work/root" "$destination"
}

fail() {
    echo "build_root.sh: $*" >&2
    exit 1
}

check_builder() {
    grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release ||
        fail "needs Debian 12 (bookworm) as the build host; on other systems use deploy/Dockerfile"
    [[ $EUID -eq 0 ]] || fail "must run as root: the files of the image must belong to root"
    "$PYTHON" -m pip --version >/dev/null 2>&1 || fail "needs pip of $PYTHON: apt-get install python3-pip"
}

# Use the builder's package sources, but separate lists and state: packages installed in the builder have no influence.
apt() {
    local work=$1 tool=$2
    shift 2
    # The user _apt has no access to the temporary folder.
    "$tool" -q=2 -o "Dir::State=$work/apt" -o Dir::State::status=/dev/null -o "Dir::Cache=$work/apt" \
        -o APT::Sandbox::User=root "$@"
}

update_lists() {
    mkdir -p "$1/apt/lists/partial" "$1/apt/archives/partial"
    apt "$1" apt-get update
}

pin_debian_packages() {
    local work name version
    work=$(mktemp -d)
    # shellcheck disable=SC2064  # expand the folder now
    trap "rm -rf -- '$work'" EXIT
    update_lists "$work"
    while read -r name; do
        version=$(apt "$work" apt-cache policy "$name" | sed -n 's/^ *Candidate: //p')
        [[ -n $version ]] || fail "the archive has no package $name, which packages.txt lists"
        sed -i -E "s/^(${name//+/[+]}=)[^ ]+/\1$version/" "$HERE/packages.txt"
    done < <(grep -o '^[^#= ]*' "$HERE/packages.txt")
}

extract_debian_packages() {
    local work=$1 root=$2 package pins
    mapfile -t pins < <(grep -o '^[^# ]*' "$HERE/packages.txt")
    mkdir -p "$work/debs" "$root/var/lib/dpkg/status.d"
    update_lists "$work"
    (cd "$work/debs" && apt "$work" apt-get download "${pins[@]}") ||
        fail "cannot download what packages.txt pins; if the archive has newer versions, run make image-packages"
    for package in "$work"/debs/*.deb; do
        dpkg-deb --extract "$package" "$root"
        # Scanners look here for the packages of images without dpkg.
        dpkg-deb --field "$package" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
    done
}

install_python_packages() {
    local work=$1 root=$2
    local pip=("$PYTHON" -m pip -qq --disable-pip-version-check)
    local hashed=(--no-deps --only-binary=:all: --require-hashes)
    # Build from a copy, without the row kernels: they are for clients with torch, which the root does not have.
    mkdir "$work/source"
    (cd "$REPOSITORY" && tar -c --exclude=__pycache__ --exclude='*.so' --exclude='*.c' \
        pyproject.toml hatch_build.py README.md LICENSE proto client dataplane_server) | tar -x -C "$work/source"
    "${pip[@]}" install "${hashed[@]}" --root-user-action=ignore --target "$work/build-tools" \
        --requirement "$HERE/build-requirements.txt"
    PYTHONPATH=$work/build-tools "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$work/source"
    "${pip[@]}" download "${hashed[@]}" --dest "$work/wheels" --requirement "$HERE/requirements.txt"
    "${pip[@]}" install --root "$root" --root-user-action=ignore --break-system-packages --ignore-installed --no-index \
        --no-deps --no-compile --no-warn-script-location "$work"/wheels/*.whl
    ln -s python3.11 "$root/usr/bin/python3" # the scripts' interpreter
}

remove_what_nothing_runs() (
    cd "$1"
    # Scripts of Debian packages (no shell can run them), documents except licences, conversions for iconv.
    rm -rf bin sbin usr/sbin usr/lib/binfmt.d usr/lib/*/{audit,gconv} usr/share/zoneinfo/{localtime,posix,right}
    find usr/share -mindepth 1 -maxdepth 1 ! -name common-licenses ! -name ca-certificates ! -name doc ! -name zoneinfo \
        -exec rm -r {} +
    find usr/share/doc -type f ! -name copyright -delete
    find usr/share/doc -xtype l -delete
    find usr/share/doc -type d -empty -delete
    # Directories of systems with logins.
    rm -rf boot home media mnt opt srv etc/{apt,ca-certificates,default,issue*,motd,profile.d,skel,update-motd.d}
    find var -mindepth 1 -maxdepth 1 ! -name lib -exec rm -r {} +
    # Modules whose libraries are absent, and development tools.
    rm -rf usr/lib/python3.11/lib-dynload/{_crypt,_curses*,_dbm,_sqlite3,nis,readline,_test*,_xxtest*,xx*}.cpython-*
    rm -rf usr/lib/python3.11/{curses,dbm,distutils,ensurepip,idlelib,lib2to3,pydoc_data,sqlite3,test,tkinter,turtledemo}
    find usr/local/bin -type f ! -name dataplane ! -name dataplane-server -delete
    cd "$PACKAGES_AT"
    rm -rf numpy/{f2py,distutils,_pyinstaller,_core/include,_core/lib}
    find . -type d -name tests -prune -exec rm -r {} +
    find . -type f \( -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' -o -name '*.c' -o -name '*.h' \) -delete
    # Records of the wheels' location.
    find . -name direct_url.json -delete
    find . -name RECORD -exec sed -i '/direct_url\.json,/d' {} +
)

# Do the work of the scripts of ca-certificates and openssl: make one file, and link OpenSSL's default path to it.
gather_certificates() {
    local root=$1
    mkdir -p "$root/etc/ssl/certs" "$root/usr/lib/ssl"
    cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
    ln -s /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"
    rm -r "$root/usr/share/ca-certificates"
}

# All users may write to the mount points of volumes, so that the image also runs without volumes. A new volume of Docker
# gets these rights, too.
name_users_and_mounts() {
    local root=$1
    printf '%s\n' 'root:x:0:0:root:/root:/usr/sbin/nologin' \
        'dataplane:x:65532:65532:RL Data Plane:/nonexistent:/usr/sbin/nologin' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'dataplane:x:65532:' >"$root/etc/group"
    printf '%s\n' 'passwd: files' 'group: files' 'hosts: files dns' >"$root/etc/nsswitch.conf"
    mkdir -p "$root"/{dev,proc,sys,run/dataplane,tmp,var/lib/dataplane}
    chmod 1777 "$root"/{run/dataplane,tmp,var/lib/dataplane}
    chown -R 0:0 "$root"
}

# Bytecode cannot be written later, and sources cannot change, so Python need not compare the two.
compile_modules() {
    local root=$1
    "$PYTHON" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$root" -p / \
        "$root/usr/lib/python3.11" "$root/$PACKAGES_AT"
}

write_sbom() {
    local work=$1 root=$2
    mkdir -p "$root/$(dirname "$SBOM_AT")"
    "$PYTHON" "$HERE/write_sbom.py" "$work/wheels" "$work/debs" "$root/$SBOM_AT"
}

main "$@"
