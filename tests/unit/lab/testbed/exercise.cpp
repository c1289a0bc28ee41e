// The parts of the switch without a kernel in them, driven line by line from standard input:
//   link LATENCY_NS JITTER_NS LOSS BYTES_PER_S QUEUE_BYTES SEED    makes a link, numbered from 0
//   seed SEED INDEX                                                says the seed of a link
//   send LINK NOW_NS BYTES                                         says when a packet arrives, or its fate
//   path NOW_NS BYTES COUNT LINK...                                the same over one link after the other
//   change LINK NOW_NS LATENCY_NS JITTER_NS LOSS BYTES_PER_S QUEUE_BYTES
//   burst LINK HEAD_NS TAIL_NS BYTES PACKETS FIRST_BYTES LAST_BYTES   says head and tail, or its fate
//   push WHEN_NS ITEM, pop                                         the delay queue; pop says time and item
//   frame HEX                                                      says what it stands for, or foreign
#include <inttypes.h>
#include <stdio.h>

#include <iostream>
#include <string>
#include <vector>

#include "delay_queue.h"
#include "frame.h"
#include "link.h"

using namespace tpiedge;

static void say(Fate fate, const Burst &burst) {
    if (fate == Fate::PASSED) {
        printf("%" PRId64 " %" PRId64 "\n", burst.head_ns, burst.tail_ns);
    } else {
        printf("%s\n", fate == Fate::LOST ? "lost" : "dropped");
    }
}

static void read_hex(const std::string &hex) {
    // Not a byte more than there is, so that a read beyond the end is noticed.
    std::vector<unsigned char> frame;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
        frame.push_back(static_cast<unsigned char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    frame.shrink_to_fit();
    uint32_t target = 0;
    Burst burst{};
    if (!read_frame(frame.data(), frame.size(), target, burst)) {
        printf("foreign\n");
        return;
    }
    unsigned char address[4];
    memcpy(address, &target, 4);
    printf("%d.%d.%d.%d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", address[0], address[1], address[2],
           address[3], burst.bytes, burst.packets, burst.first_bytes, burst.last_bytes);
}

static LinkSettings read_settings() {
    LinkSettings settings{};
    std::cin >> settings.latency_ns >> settings.jitter_ns >> settings.loss >> settings.bytes_per_s >>
        settings.queue_bytes;
    return settings;
}

static void pass_path(std::vector<Link> &links) {
    int64_t now_ns, bytes;
    size_t count, link;
    std::cin >> now_ns >> bytes >> count;
    Burst burst{now_ns, now_ns, bytes, 1, bytes, bytes};
    Fate fate = Fate::PASSED;
    for (size_t i = 0; i < count; ++i) {
        std::cin >> link;
        if (fate == Fate::PASSED) fate = links.at(link).pass(burst);
    }
    say(fate, burst);
}

int main() {
    std::vector<Link> links;
    DelayQueue queue(4);
    std::string command;
    while (std::cin >> command) {
        if (command == "link") {
            const LinkSettings settings = read_settings();
            uint64_t seed;
            std::cin >> seed;
            links.emplace_back(settings, seed);
        } else if (command == "seed") {
            uint64_t seed, index;
            std::cin >> seed >> index;
            printf("%" PRIu64 "\n", link_seed(seed, index));
        } else if (command == "send") {
            size_t link;
            int64_t now_ns, bytes;
            std::cin >> link >> now_ns >> bytes;
            Burst burst{now_ns, now_ns, bytes, 1, bytes, bytes};
            say(links.at(link).pass(burst), burst);
        } else if (command == "path") {
            pass_path(links);
        } else if (command == "change") {
            size_t link;
            int64_t now_ns;
            std::cin >> link >> now_ns;
            links.at(link).change(read_settings(), now_ns);
        } else if (command == "burst") {
            size_t link;
            Burst burst{};
            std::cin >> link >> burst.head_ns >> burst.tail_ns >> burst.bytes >> burst.packets >> burst.first_bytes >>
                burst.last_bytes;
            say(links.at(link).pass(burst), burst);
        } else if (command == "push") {
            int64_t when_ns;
            uint32_t item;
            std::cin >> when_ns >> item;
            queue.push(when_ns, item);
        } else if (command == "pop") {
            const int64_t when_ns = queue.next_ns();
            const uint32_t item = queue.pop();
            printf("%" PRId64 " %" PRIu32 "\n", when_ns, item);
        } else if (command == "frame") {
            std::string hex;
            std::cin >> hex;
            read_hex(hex);
        } else {
            return 2;
        }
    }
    return 0;
}
