/* Keeps a server of the tests on this machine: preloaded, it turns "listen on every interface" into loopback.
 *
 * Debian 12's Orthanc 1.10.1 has no setting for the address it listens on (HttpBindAddresses came later).
 * An address that names an interface is left as it is.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

int bind(int descriptor, const struct sockaddr *wanted, socklen_t length)
{
    bind_function next = (bind_function)dlsym(RTLD_NEXT, "bind");
    struct sockaddr_storage address;

    if (length > sizeof address)
        return next(descriptor, wanted, length);
    memcpy(&address, wanted, length);

    if (address.ss_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
        struct in_addr *host = &((struct sockaddr_in *)&address)->sin_addr;
        if (host->s_addr == htonl(INADDR_ANY))
            host->s_addr = htonl(INADDR_LOOPBACK);
    } else if (address.ss_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        struct in6_addr *host = &((struct sockaddr_in6 *)&address)->sin6_addr;
        if (IN6_IS_ADDR_UNSPECIFIED(host))
            *host = in6addr_loopback;
    }
    return next(descriptor, (const struct sockaddr *)&address, length);
}
