"""What `helm test` runs: asks /ready, and verifies the DICOM port by C-ECHO. A line for each; exit code 1 for a fault.

Arguments: the address for HTTP, the DICOM host and port, the called AE title, the calling AE title
A node that knows no such caller refuses the association: its port answers, which is said.
"""

import sys

import httpx2
from pynetdicom import AE, evt
from pynetdicom.pdu import A_ASSOCIATE_RJ

_SUCCESS = 0x0000
_UNKNOWN_CALLER = (1, 3)  # PS3.8 9.3.4: source and reason


def ready(address: str) -> str:
    """Return what is wrong with /ready; empty if it is ready."""
    try:
        answer = httpx2.get(f"{address}/ready", timeout=10, verify=False)  # the certificate names the node for users
    except httpx2.HTTPError as error:
        return str(error)
    return "" if answer.status_code == 200 else f"status {answer.status_code}"


def verified(host: str, port: int, called: str, calling: str) -> str:
    """Return what is wrong with the DICOM port; empty if it answers as it should."""
    entity = AE(ae_title=calling)
    entity.add_requested_context("1.2.840.10008.1.1")
    rejections: list[tuple[int, int]] = []

    def keep(event: evt.Event) -> None:
        """Keep a rejection as it comes: pynetdicom forgets one that comes before its thread waits for the answer."""
        if isinstance(event.pdu, A_ASSOCIATE_RJ):
            rejections.append((event.pdu.source, event.pdu.reason_diagnostic))

    association = entity.associate(host, port, ae_title=called, evt_handlers=[(evt.EVT_PDU_RECV, keep)])
    if association.is_established:
        status = getattr(association.send_c_echo(), "Status", None)
        association.release()
        return "" if status == _SUCCESS else f"C-ECHO was answered with {status}"
    if rejections == [_UNKNOWN_CALLER]:
        print(f"dicom: {calling} is no caller of this node, so there was no C-ECHO; the port answers")
        return ""
    return f"refused {rejections[0]}" if rejections else "no association"


def main(http: str, host: str, port: str, called: str, calling: str) -> int:
    """Run both checks; returns the exit code."""
    faults = {"ready": ready(http), "dicom": verified(host, int(port), called, calling)}
    for name, fault in faults.items():
        print(f"{name}: {fault or 'good'}")
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
