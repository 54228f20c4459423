/* Entries of errors where no memory follows them: the data of an error goes to memory that has no room for all of it. A
 * program of a version before 1.5 has no size of the data in its entries. The argument is the minor version. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <unistd.h>
#include <rdma/fi_tagged.h>

#include "ends.h"

enum { PAGE = 4096, ROOM = 16 };

static char *end_of_memory;
static int has_size;

static void map(void)
{
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    OK(mprotect(pages + PAGE, PAGE, PROT_NONE));
    end_of_memory = pages + PAGE;
}

/* Memory for an entry of this size, at the end. Its data would go to an address that is none. */
static void *entry_of(size_t size)
{
    char *entry = end_of_memory - size + (has_size ? 0 : sizeof(size_t));
    memset(entry, 0xff, (size_t)(end_of_memory - entry));
    return entry;
}

/* A message that is longer than its receive. */
static void cut_message(void)
{
    struct fi_cq_err_entry *error = entry_of(sizeof(*error)), whole = {0};
    struct fi_cq_tagged_entry entry;
    static char in[4], out[100];
    char text[64], *data = end_of_memory - ROOM;
    fi_addr_t to;

    IS(fi_av_insert(a.av, b.name, 1, &to, 0, NULL), 1);
    OK(fi_trecv(b.ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 1, 0, in));
    OK(fi_tinject(a.ep, out, sizeof(out), to, 1));
    IS(next_of(&b, &entry, NULL), -FI_EAVAIL);
    if (has_size) {
        whole = (struct fi_cq_err_entry){ .err_data = data, .err_data_size = ROOM };
        IS(fi_cq_readerr(b.cq, &whole, 0), 1);
        CHECK(whole.err_data == data && whole.err_data_size == ROOM && strlen(data) == ROOM - 1);
        error = &whole;
    } else {
        IS(fi_cq_readerr(b.cq, error, 0), 1);
        CHECK(error->err_data != NULL && error->err_data != (void *)-1);
    }
    IS(error->err, FI_ETRUNC);
    CHECK(error->op_context == in && error->olen == sizeof(out) - sizeof(in));
    CHECK(strlen(fi_cq_strerror(b.cq, error->prov_errno, error->err_data, text, sizeof(text))) >= ROOM - 1);
    CHECK(strlen(fi_cq_strerror(b.cq, error->prov_errno, error->err_data, NULL, 0)) >= ROOM - 1);
}

/* A connection to a port that nobody listens on. */
static void refused_connection(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(1), .sin_addr = { htonl(INADDR_LOOPBACK) } };
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fi_eq_err_entry *error = entry_of(sizeof(*error));
    struct fi_eq_cm_entry entry;
    struct fid_eq *eq;
    uint32_t event;
    struct fid_cq *cq;
    struct fid_ep *ep;

    OK(fi_eq_open(fabric, &attr, &eq, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_cq_open(domain, &(struct fi_cq_attr){0}, &cq, NULL));
    OK(fi_ep_bind(ep, &eq->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(ep));
    OK(fi_connect(ep, &name, NULL, 0));
    IS(fi_eq_sread(eq, &event, &entry, sizeof(entry), 20000, 0), -FI_EAVAIL);
    if (has_size) {
        error->err_data_size = 0;
    }
    IS(fi_eq_readerr(eq, error, 0), sizeof(*error) - (has_size ? 0 : sizeof(size_t)));
    CHECK(error->fid == &ep->fid && error->err == FI_ECONNREFUSED);
    OK(fi_close(&ep->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&eq->fid));
}

int main(int argc, char **argv)
{
    uint32_t minor = argc > 1 ? (uint32_t)atoi(argv[1]) : 17;

    alarm(60);
    map();
    api_version = FI_VERSION(1, minor);
    has_size = minor >= 5;
    mr_mode = has_size ? 0 : FI_MR_BASIC;
    open_ends(FI_TAGGED, 1, argv);
    cut_message();
    close_ends();
    ep_type = FI_EP_MSG;
    open_domain(FI_MSG, 1, argv);
    refused_connection();
    close_domain();
    return 0;
}
