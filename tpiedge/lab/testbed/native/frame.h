// Parses a frame of a TAP device with IFF_VNET_HDR: where it goes, and the packets that it stands for.
#ifndef TPIEDGE_FRAME_H
#define TPIEDGE_FRAME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "link.h"

namespace tpiedge {

constexpr size_t VNET_BYTES = 10;  // struct virtio_net_hdr
constexpr size_t ETHERNET_BYTES = 14;
constexpr size_t MAC_BYTES = 6;
constexpr size_t MAX_FRAME_BYTES = VNET_BYTES + ETHERNET_BYTES + 65535;

// False where it is no IPv4 packet. `target` is in network order. The times of the burst are not touched.
inline bool read_frame(const unsigned char *frame, size_t size, uint32_t &target, Burst &burst) {
    constexpr size_t IP_AT = VNET_BYTES + ETHERNET_BYTES, IP_BYTES = 20, TCP_BYTES = 20;
    constexpr unsigned char SEGMENTS = 1, ECN = 0x80;  // VIRTIO_NET_HDR_GSO_TCPV4, _ECN
    if (size < IP_AT + IP_BYTES || frame[IP_AT - 2] != 0x08 || frame[IP_AT - 1] != 0x00) return false;
    memcpy(&target, frame + IP_AT + 16, sizeof target);
    const auto bytes = static_cast<int64_t>(size - IP_AT);
    burst.bytes = burst.first_bytes = burst.last_bytes = bytes;
    burst.packets = 1;
    if ((frame[1] & ~ECN) != SEGMENTS) return true;

    uint16_t segment_bytes;  // in the order of the machine
    memcpy(&segment_bytes, frame + 4, sizeof segment_bytes);
    const size_t tcp_at = IP_AT + 4u * (frame[IP_AT] & 15u);
    if (segment_bytes == 0 || size < tcp_at + TCP_BYTES) return true;
    const auto header_bytes = static_cast<int64_t>(tcp_at - IP_AT + 4u * (frame[tcp_at + 12] >> 4));
    const int64_t payload_bytes = bytes - header_bytes;
    if (payload_bytes <= segment_bytes) return true;
    // Each of the packets has the headers.
    burst.packets = (payload_bytes + segment_bytes - 1) / segment_bytes;
    burst.bytes = payload_bytes + burst.packets * header_bytes;
    burst.first_bytes = segment_bytes + header_bytes;
    burst.last_bytes = payload_bytes - (burst.packets - 1) * segment_bytes + header_bytes;
    return true;
}

// To whom a frame is handed. The devices have no ARP: what they fill in means nothing.
inline void readdress(unsigned char *frame, const unsigned char *mac) { memcpy(frame + VNET_BYTES, mac, MAC_BYTES); }

}  // namespace tpiedge

#endif
