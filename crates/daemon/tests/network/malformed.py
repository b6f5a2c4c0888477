"""Sends malformed frames into an interface, and, after a line on standard input, fuzzed ones.

Arguments: the interface, its address of Ethernet and of IP, the victim's of Ethernet and of IP. After each part it prints, as JSON, how many
frames are expected to be counted how. What must not arrive has MARK in it.
"""

import json
import logging
import random
import socket
import sys
from collections import Counter

# It warns that the namespace has no routes.
logging.getLogger("scapy.runtime").setLevel(logging.ERROR)

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Raw, fuzz

DEVICE, OWN, OWN_IP, VICTIM, VICTIM_IP = sys.argv[1:]
OWN_IP6, OTHER_IP6 = "2001:db8::1", "2001:db8::2"
MTU = 1400
LOCAL = 0x88B5
MARK = Raw(b"must not arrive")

link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((DEVICE, 0))
counts = Counter()


def send(counted, frame):
    link.send(bytes(frame))
    counts[counted] += 1


def report():
    print(json.dumps(counts), flush=True)
    counts.clear()


def to_victim(**fields):
    return Ether(**{"src": OWN, "dst": VICTIM, **fields})


def own_ip(**fields):
    return to_victim() / IP(**{"src": OWN_IP, "dst": VICTIM_IP, **fields})


def lengths():
    """The switch takes any frame with a whole header: the receiver's stack looks at the rest."""
    for length in (0, 1, 2, 20, 45, 46, MTU - 1, MTU):
        send("sent", to_victim(type=LOCAL) / Raw(bytes(length)))
    for length in (MTU + 1, MTU + 4, 2 * MTU, 8999, 9000):
        send("too_long", to_victim(type=LOCAL) / Raw(bytes(length)))
    for length in range(4):
        send("too_short", to_victim(type=0x8100) / Raw(bytes(length)))


def packets():
    for length in (0, 1, 19, 20, 21, 1500, 65535):
        send("sent", own_ip(len=length) / UDP(sport=1, dport=2) / Raw(bytes(64)))
        send("sent", own_ip() / UDP(sport=1, dport=2, len=length) / Raw(bytes(64)))
        send("sent", to_victim() / IPv6(src=OWN_IP6, dst=OTHER_IP6, plen=length) / TCP() / Raw(bytes(64)))
    for words in range(16):
        send("sent", own_ip(ihl=words) / TCP())
        send("sent", own_ip() / TCP(dataofs=words) / Raw(bytes(8)))
        send("sent" if words == 4 else "wrong_ip", own_ip(version=words) / MARK if words != 4 else own_ip())
    whole = bytes(own_ip() / TCP())
    for length in range(14, len(whole), 3):
        # Source and version are looked at.
        send("sent" if length >= 30 else "wrong_ip", Raw(whole[:length]))


def fragments():
    for offset, more, payload in ((0, 1, 64), (3, 1, 64), (1, 0, 8), (8191, 1, 64), (8191, 0, 8), (2, 1, 7)):
        flags = "MF" if more else 0
        send("sent", own_ip(id=7, frag=offset, flags=flags, proto=17) / Raw(bytes([offset & 0xFF]) * payload))
        send("sent", own_ip(id=7, frag=offset, flags=flags, proto=6) / Raw(bytes(payload)))


def tags():
    for inner in (Dot1Q(vlan=0), Dot1Q(vlan=10), Dot1Q(vlan=4095, prio=7)):
        send("wrong_vlan", to_victim() / inner / IP(src=OWN_IP, dst=VICTIM_IP) / MARK)
        for outer in (0x8100, 0x88A8, 0x9100):
            send("wrong_ip", to_victim(type=outer) / Dot1Q(vlan=0, type=0x8100) / inner / IP(src=OWN_IP, dst=VICTIM_IP) / MARK)


def impostors():
    """Addresses of other ports, and of none."""
    for source in (VICTIM, "02:00:00:00:00:04", "02:00:00:00:00:99", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"):
        for destination in (VICTIM, "02:00:00:00:00:04", "ff:ff:ff:ff:ff:ff"):
            send("wrong_source", Ether(src=source, dst=destination, type=LOCAL) / MARK)
            send("wrong_source", Ether(src=source, dst=destination) / IP(src=OWN_IP, dst=VICTIM_IP) / UDP() / MARK)
    for destination in (VICTIM, "ff:ff:ff:ff:ff:ff"):
        ether = to_victim(dst=destination)
        for operation in (1, 2):
            send("wrong_ip", ether / ARP(op=operation, hwsrc=OWN, psrc=VICTIM_IP, pdst=VICTIM_IP) / MARK)
            send("wrong_ip", ether / ARP(op=operation, hwsrc=VICTIM, psrc=OWN_IP, pdst=VICTIM_IP) / MARK)
            send("wrong_ip", ether / ARP(op=operation, hwsrc=OWN, psrc=OWN_IP, plen=16) / MARK)
        send("wrong_ip", ether / IP(src=VICTIM_IP, dst="255.255.255.255") / ICMP() / MARK)
        send("wrong_ip", ether / IPv6(src=OTHER_IP6, dst="ff02::1") / TCP() / MARK)
        advertisement = ICMPv6ND_NA(tgt=OTHER_IP6, R=0) / ICMPv6NDOptDstLLAddr(lladdr=OWN) / MARK
        send("wrong_ip", ether / IPv6(src=OWN_IP6, dst="ff02::1") / advertisement)
        send("wrong_ip", ether / IPv6(src=OTHER_IP6, dst="ff02::1") / ICMPv6ND_NA(tgt=OWN_IP6) / MARK)
        solicitation = ICMPv6ND_NS(tgt=OTHER_IP6) / ICMPv6NDOptSrcLLAddr(lladdr=OWN) / MARK
        send("wrong_ip", ether / IPv6(src="::", dst="ff02::1") / solicitation)


def storm():
    frames = [bytes(Ether(src=OWN, dst=group, type=LOCAL) / Raw(bytes(46))) for group in ("ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01")]
    for _ in range(200):
        for frame in frames:
            send("storm", Raw(frame))


def fuzzed():
    """Any outcome, as long as it is counted; for the same numbers the same frames."""
    random.seed(37)
    kinds = (
        lambda: to_victim() / fuzz(IP(src=OWN_IP) / TCP()),
        lambda: to_victim() / fuzz(IP(dst=VICTIM_IP) / UDP() / Raw()),
        lambda: to_victim() / fuzz(ARP(hwtype=1, ptype=0x0800)),
        lambda: to_victim() / fuzz(IPv6(src=OWN_IP6) / ICMPv6ND_NA()),
        lambda: to_victim() / fuzz(Dot1Q()) / fuzz(IP()),
        lambda: fuzz(Ether(dst=VICTIM)) / Raw(random.randbytes(random.randrange(MTU))),
        lambda: to_victim(type=random.choice((0x0800, 0x86DD, 0x0806))) / Raw(random.randbytes(random.randrange(MTU))),
    )
    for _ in range(40):
        for kind in kinds:
            send("any", Raw(bytes(kind())[: MTU + 14]))


for part in (lengths, packets, fragments, tags, impostors, storm):
    part()
report()
sys.stdin.readline()
fuzzed()
report()
