#!/bin/sh
# Installs the Debian packages that only the tests use: a real archive, viewers and independent DICOM checkers,
# Prometheus, Alertmanager, PostgreSQL, rsyslog, logrotate.
#
# Does nothing where they are there. Never asks a question: without root or sudo it says what is missing and goes on,
# for the tests that need it then skip and say so. With CI=true the tests may not skip, so it fails.
set -eu

missing=
want() { # want COMMAND-OR-FILE PACKAGE...
    thing=$1
    shift
    command -v "$thing" >/dev/null 2>&1 || [ -e "$thing" ] || missing="$missing $*"
}
want /usr/sbin/Orthanc orthanc
want /usr/share/orthanc/plugins/libOrthancDicomWeb.so orthanc-dicomweb
want dsrdump dcmtk
want gdcmconv libgdcm-tools
want dciodvfy dicom3tools
want DicomSRValidator pixelmed-apps
want javac default-jdk-headless
want chromium-headless-shell chromium-headless-shell
want npm npm
want Xvfb xvfb
want dicomscope dicomscope
fc-list 2>/dev/null | grep -qi 'cjk' || missing="$missing fontconfig fonts-noto-cjk"
want gcc gcc libc6-dev
want openssl openssl
want promtool prometheus
want amtool prometheus-alertmanager
want strace strace
want restic restic
want systemd-analyze systemd
want /usr/sbin/rsyslogd rsyslog
want logrotate logrotate
ls /usr/lib/*/rsyslog/lmnsd_gtls.so >/dev/null 2>&1 || missing="$missing rsyslog-gnutls"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0

give_up() {
    echo "not installed:$missing ($1); tests that need them are skipped" >&2
    [ "${CI:-}" != true ] || exit 1
    exit 0
}
command -v apt-get >/dev/null 2>&1 || give_up "no apt-get here"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    give_up "needs root or sudo without a password"
fi

# Debian starts the services of orthanc, postgresql, prometheus, alertmanager and rsyslog when they are installed, most of
# them on every network interface. A test machine wants the programs only: policy-rc.d forbids the start, update-rc.d the
# start at the next boot. A policy that is there already stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '$as_root rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi
$as_root apt-get update -qq || give_up "apt-get update failed"
# shellcheck disable=SC2086  # both are lists of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing ||
    give_up "apt-get install failed"
for service in orthanc postgresql prometheus prometheus-alertmanager rsyslog; do
    case " $missing " in
    *" $service "*) $as_root update-rc.d "$service" disable || true ;;
    esac
done
