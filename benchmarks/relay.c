/* Bytes over plain TCP, sent, passed on and received: the least that two hops can cost on this machine.
 *
 *   relay receive PORT BYTES       listen, and read that many bytes
 *   relay pass PORT ONWARD         listen, and write to port ONWARD all that one connection sends
 *   relay send PORT SIZE COUNT     connect, and write COUNT messages of SIZE bytes
 *
 * Each prints lines of JSON: when it is ready, then the moment of its first or last byte and the processor seconds that
 * it used, all by the clocks that the other roles use.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE (256 * 1024)

static void must(int fine, const char *what) {
    if (!fine) {
        perror(what);
        exit(1);
    }
}

static double now(void) {
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return moment.tv_sec + moment.tv_nsec / 1e9;
}

static double used(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int listening(const char *port) {
    int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = loopback(port);
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    must(bind(server, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(server, 1) == 0, "listen");
    printf("{\"ready\": true}\n");
    fflush(stdout);
    return server;
}

static int accepted(int server) {
    int peer = accept(server, NULL, NULL);
    must(peer >= 0, "accept");
    return peer;
}

static int connected(const char *port) {
    int peer = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in address = loopback(port);
    must(connect(peer, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return peer;
}

static void write_all(int peer, const char *data, size_t size) {
    while (size > 0) {
        ssize_t written = write(peer, data, size);
        must(written > 0, "write");
        data += written;
        size -= written;
    }
}

int main(int count, char **given) {
    static char piece[PIECE];
    if (count == 4 && strcmp(given[1], "receive") == 0) {
        int peer = accepted(listening(given[2]));
        long long left = atoll(given[3]);
        double before = used();
        while (left > 0) {
            ssize_t got = read(peer, piece, PIECE);
            must(got > 0, "read");
            left -= got;
        }
        printf("{\"end\": %.9f, \"cpu\": %.6f}\n", now(), used() - before);
    } else if (count == 4 && strcmp(given[1], "pass") == 0) {
        int server = listening(given[2]), peer = accepted(server), onward = connected(given[3]);
        ssize_t got;
        double before = used();
        while ((got = read(peer, piece, PIECE)) > 0)
            write_all(onward, piece, got);
        printf("{\"cpu\": %.6f}\n", used() - before);
    } else if (count == 5 && strcmp(given[1], "send") == 0) {
        int peer = connected(given[2]);
        size_t size = atoll(given[3]);
        char *message = malloc(size);
        double start = now(), before = used();
        memset(message, 7, size);
        for (long long left = atoll(given[4]); left > 0; left--)
            write_all(peer, message, size);
        printf("{\"start\": %.9f, \"cpu\": %.6f}\n", start, used() - before);
    } else {
        fprintf(stderr, "relay receive PORT BYTES | pass PORT ONWARD | send PORT SIZE COUNT\n");
        return 2;
    }
    return 0;
}
