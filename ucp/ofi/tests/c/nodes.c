/* Answers of fi_getinfo to nodes and services of endpoints that are not connected, to names in words, to objects that are
 * open, and to values of later releases. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ends.h"

static const int control_unified = 3;
static const uint64_t tagged_directed_recv = 1ull << 45, tagged_multi_recv = 1ull << 46;

static struct fi_info *hints;

static char *free_port(void)
{
    static char port[16];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr*)&at, sizeof(at)) == 0);
    CHECK(getsockname(fd, (struct sockaddr*)&at, &len) == 0);
    close(fd);
    snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
    return port;
}

/* NULL: there is no answer. */
static struct fi_info *ask(const char *node, const char *service, uint64_t flags)
{
    struct fi_info *found = NULL;
    int status = fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &found);
    CHECK(status == 0 || (status == -FI_ENODATA && found == NULL));
    return found;
}

static void services(const char *port)
{
    struct fi_info *found;
    char words[1024];
    size_t len = sizeof(words);
    fi_addr_t addr;

    /* Nobody listens: no name. The endpoint that serves it asks for it. */
    CHECK(ask("127.0.0.1", port, 0) == NULL && ask("no.such.node", port, 0) == NULL && ask("no.such.node", NULL, 0) == NULL);
    CHECK((found = ask("127.0.0.1", NULL, 0)) != NULL && found->dest_addr == NULL);
    CHECK((found = ask(NULL, port, 0)) != NULL && found->src_addr == NULL && found->dest_addr == NULL);
    info = ask(NULL, port, FI_SOURCE);
    CHECK(info != NULL && info->src_addr != NULL && info->dest_addr == NULL);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    open_end(&a);
    a.len = sizeof(a.name);
    OK(fi_getname(&a.ep->fid, a.name, &a.len));
    CHECK(info->src_addrlen == a.len);
    /* Another endpoint of the port is one all the same. */
    open_end(&b);
    for (int i = 0; i < 2; i++) {
        found = ask(i == 0 ? "127.0.0.1" : "localhost", port, 0);
        CHECK(found != NULL && found->dest_addrlen == a.len && memcmp(found->dest_addr, a.name, a.len) == 0);
        CHECK(found->src_addr == NULL && found->addr_format == info->addr_format);
        fi_freeinfo(found);
    }
    IS(fi_av_insertsvc(b.av, "127.0.0.1", port, &addr, 0, NULL), 1);
    IS(fi_av_insertsvc(b.av, "127.0.0.1", "1", &addr, 0, NULL), -FI_EINVAL);
    IS(fi_av_insertsvc(b.av, "127.0.0.1", NULL, &addr, 0, NULL), -FI_EINVAL);
    /* The source address of an answer may be a hint. */
    hints->src_addr = malloc(info->src_addrlen);
    memcpy(hints->src_addr, info->src_addr, info->src_addrlen);
    hints->src_addrlen = info->src_addrlen;
    found = ask(NULL, NULL, 0);
    CHECK(found != NULL && memcmp(found->src_addr, info->src_addr, info->src_addrlen) == 0);
    memset(hints->src_addr, 1, info->src_addrlen);
    CHECK(ask(NULL, NULL, 0) == NULL);
    free(hints->src_addr);
    hints->src_addr    = NULL;
    hints->src_addrlen = 0;
    /* A name in words. */
    CHECK(fi_av_straddr(a.av, a.name, words, &len) == words);
    found = ask(words, NULL, 0);
    CHECK(found != NULL && found->dest_addrlen == a.len && memcmp(found->dest_addr, a.name, a.len) == 0);
    CHECK(ask("fi_addr_other://1", NULL, 0) == NULL && ask(words, NULL, FI_SOURCE) == NULL);
}

static void objects(void)
{
    struct fi_info *found = ask(NULL, NULL, 0);
    int other;

    CHECK(found->domain_attr->domain == domain && found->fabric_attr->fabric == fabric);
    hints->domain_attr->domain = domain;
    hints->fabric_attr->fabric = fabric;
    CHECK(ask(NULL, NULL, 0) != NULL);
    /* An object that is not open, or of another kind. */
    hints->domain_attr->domain = (struct fid_domain*)&other;
    CHECK(ask(NULL, NULL, 0) == NULL);
    hints->domain_attr->domain = NULL;
    hints->fabric_attr->fabric = (struct fid_fabric*)domain;
    CHECK(ask(NULL, NULL, 0) == NULL);
    hints->fabric_attr->fabric = NULL;
}

static void later_releases(void)
{
    struct fi_info *found;
    hints->domain_attr->control_progress = control_unified;
    CHECK((found = ask(NULL, NULL, 0)) != NULL && (int)found->domain_attr->control_progress == control_unified);
    hints->domain_attr->control_progress = control_unified + 1;
    CHECK(ask(NULL, NULL, 0) == NULL);
    hints->domain_attr->control_progress = FI_PROGRESS_UNSPEC;
    hints->caps = FI_TAGGED | tagged_directed_recv | tagged_multi_recv;
    hints->rx_attr->caps = tagged_multi_recv;
    CHECK((found = ask(NULL, NULL, 0)) != NULL && (found->caps & hints->caps) == hints->caps);
    CHECK((found->caps & FI_DIRECTED_RECV) && (found->caps & FI_MULTI_RECV) && found->rx_attr->caps == tagged_multi_recv);
    hints->caps = FI_TAGGED;
    CHECK(ask(NULL, NULL, 0) == NULL);
    hints->rx_attr->caps = 0;
    CHECK((found = ask(NULL, NULL, 0)) != NULL && !(found->caps & (tagged_directed_recv | tagged_multi_recv)));
}

int main(int argc, char **argv)
{
    char *port = free_port();

    alarm(60);
    hints                         = fi_allocinfo();
    hints->caps                   = FI_MSG;
    hints->ep_attr->type          = FI_EP_RDM;
    hints->addr_format            = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    hints->fabric_attr->prov_name = strdup("efa4");
    services(port);
    objects();
    later_releases();
    OK(fi_close(&a.ep->fid));
    CHECK(ask("127.0.0.1", port, 0) == NULL);
    OK(fi_close(&b.ep->fid));
    OK(fi_close(&a.av->fid));
    OK(fi_close(&b.av->fid));
    OK(fi_close(&a.cq->fid));
    OK(fi_close(&b.cq->fid));
    close_domain();
    CHECK(ask(NULL, NULL, 0)->domain_attr->domain == NULL && ask(NULL, NULL, 0)->fabric_attr->fabric == NULL);
    return 0;
}
