#!/bin/bash
# A container image of fipseed and fipsee, as an OCI archive, from Debian packages:
#
#     packaging/container/build.sh PACKAGES IMAGE.tar [CACHE]
#
# PACKAGES is the folder with what `cargo xtask deb` made. CACHE keeps the packages of Debian for the next time; remove it to renew them. Needs apt-get, dpkg-deb,
# tar and umoci; neither root nor a container engine. The image has what the programs are linked with, and no shell or package manager.
set -euo pipefail
# What every user in the image may read, whatever the caller keeps to itself.
umask 022

# The user in the image. Folders of the host that are mounted at /run/fipsee and /var/lib/fipsee must be this user's.
user=990

[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
packages=$(realpath "$1")
image=$(realpath --canonicalize-missing "$2")
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
cache=$(realpath --canonicalize-missing "${3:-$work/cache}")
root=$work/root
mkdir -p "$cache" "$root"

one() { # The only file of a package in a folder.
    local files=("$2/$1"_*.deb)
    [ ${#files[@]} = 1 ] && [ -e "${files[0]}" ] || { echo "error: $2 must have one package of $1" >&2; exit 1; }
    echo "${files[0]}"
}

fetch() {
    (cd "$cache" && apt-get --quiet=2 download "$1")
}
# Of the release that ours were built on, which is that of this machine. Lists of packages may be missing, or too old.
for name in base-files libc6 libgcc-s1; do
    compgen -G "$cache/${name}_*.deb" > /dev/null || fetch "$name" || { apt-get --quiet=2 update && fetch "$name"; }
done
mkdir -p "$root/var/lib/dpkg/status.d"
for name in base-files libc6 libgcc-s1 fipsee fipsee-daemon; do
    folder=$cache
    case $name in fipsee*) folder=$packages ;; esac
    file=$(one "$name" "$folder")
    dpkg-deb --extract "$file" "$root"
    # Where scanners of images look for the versions of packages.
    dpkg-deb --field "$file" > "$root/var/lib/dpkg/status.d/$name"
done
version=$(dpkg-deb --field "$(one fipsee-daemon "$packages")" Version)
architecture=$(dpkg-deb --field "$(one fipsee-daemon "$packages")" Architecture)

printf 'root:x:0:0:root:/:/usr/sbin/nologin\nfipsee:x:%s:%s:Fip-see daemon:/var/lib/fipsee:/usr/sbin/nologin\n' $user $user > "$root/etc/passwd"
printf 'root:x:0:\nfipsee:x:%s:\n' $user > "$root/etc/group"
mkdir -p "$root/run/fipsee" "$root/var/lib/fipsee"

# The same packages make the same image.
made=$(stat --format=%Y "$root/usr/bin/fipseed")
own=(./run/fipsee ./var/lib/fipsee)
archive=(tar --sort=name --numeric-owner --mtime="@$made" --directory="$root" --file="$work/layer.tar")
"${archive[@]}" --create --owner=0 --group=0 "${own[@]/#/--exclude=}" .
"${archive[@]}" --append --owner=$user --group=$user "${own[@]}"

layout=$work/image:latest
date=$(date --utc --date="@$made" +%FT%TZ)
umoci init --layout "$work/image"
umoci new --image "$layout"
umoci raw add-layer --image "$layout" --history.created "$date" "$work/layer.tar"
umoci config --image "$layout" --no-history --created "$date" --architecture "$architecture" --os linux \
    --config.user "$user:$user" --config.workingdir /var/lib/fipsee --config.stopsignal SIGTERM \
    --config.env PATH=/usr/bin --config.env FIPSEE_SOCKET=/run/fipsee/fipsee.sock \
    --config.volume /run/fipsee --config.volume /var/lib/fipsee \
    --config.entrypoint /usr/bin/fipseed --config.cmd --config=/etc/fipsee/fipseed.toml \
    --config.label "org.opencontainers.image.title=fipseed" --config.label "org.opencontainers.image.version=$version" \
    --config.label "org.opencontainers.image.licenses=MIT OR Apache-2.0"
umoci gc --layout "$work/image"
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$made" --directory="$work/image" --file="$image" .
