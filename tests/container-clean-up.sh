# Sourced by tests/container.sh: unmounts what programs left mounted in its work folder, and removes the folder.
#
# debootstrap leaves /proc mounted in the system that it makes, podman the storage of its images. Root's `tar` and
# `rm -rf` would go through such a mount, so both wait until nothing is mounted there.

# Prints what is mounted on or below a folder, the deepest first.
mounts_below() {
    mounted=$(findmnt --raw --noheadings --output TARGET) || {
        echo "findmnt failed: nobody knows what is mounted below $1, so nothing there is removed" >&2
        return 1
    }
    printf '%s\n' "$mounted" | awk -v folder="$1" '$0 == folder || index($0, folder "/") == 1' | sort -r
}

# Unmounts everything below a folder. Fails, and says what is left, where something stays mounted.
unmount_below() {
    targets=$(mounts_below "$1") || return 1
    for target in $targets; do
        umount "$target" || true # what counts is what findmnt says afterwards
    done
    left=$(mounts_below "$1") || return 1
    [ -z "$left" ] || {
        echo "nothing was removed from $1, for this is still mounted; unmount it and remove the folder:" >&2
        echo "$left" >&2
        return 1
    }
}

# Removes a folder, but only once nothing is mounted below it.
remove_tree() {
    unmount_below "$1" && rm -rf --one-file-system "$1"
}
