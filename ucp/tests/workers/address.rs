//! Addresses of workers: size, identity, and the form for other hosts.

use ucp::{Address, Context, EpParams, Source, TAG_MASK_FULL, Worker};

/// Bytes of the address of a worker with self, posix, cma and one efa.
const MAX_LEN: usize = 64;

fn context(tls: &str) -> Context {
    let source = Source::empty().with("UCX_TLS", tls).with("UCX_NET_DEVICES", "softefa0");
    Context::configured(source).unwrap()
}

fn exchange(from: &Worker, to: &Worker, address: &[u8]) -> Vec<&'static str> {
    let ep = from.connect(&Address::unpack(address).unwrap(), EpParams::default()).unwrap();
    let sent = ep.tag_send(1, b"hello".to_vec());
    let got = to.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(16));
    while !got.is_done() {
        from.progress();
        to.progress();
    }
    assert_eq!(got.wait().1, b"hello");
    sent.detach();
    ep.protocols().transports()
}

#[test]
fn packed_address_is_short() {
    let worker = context("self,posix,cma,efa").worker().unwrap();
    let packed = worker.address().pack();
    println!("{} bytes: {}", packed.len(), worker.address());
    assert!(packed.len() <= MAX_LEN, "{} bytes: {}", packed.len(), worker.address());
    let address = Address::unpack(&packed).unwrap();
    assert_eq!(address, worker.address());
    let transports: Vec<&str> = address.transports().collect();
    assert!(["self", "posix", "efa"].iter().all(|tl| transports.contains(tl)), "{transports:?}");
    // Whether the system permits cma depends on its settings.
    let kernel_copy = context("posix,cma").rma_only_resources().len();
    assert_eq!(transports.contains(&"cma"), kernel_copy > 0, "{transports:?}");
}

#[test]
fn addresses_of_one_worker_have_one_uid() {
    for tls in ["self,posix,efa", "posix,efa", "efa"] {
        let context = context(tls);
        let (one, other) = (context.worker().unwrap(), context.worker().unwrap());
        let uid = one.address().uid();
        assert!(uid.is_some());
        assert_eq!(one.address_net().uid(), uid);
        assert_eq!(Address::unpack(&one.address().pack()).unwrap().uid(), uid);
        assert_ne!(other.address().uid(), uid);
    }
}

#[test]
fn network_address_has_network_lanes_only() {
    let context = context("self,posix,cma,efa");
    let (one, other) = (context.worker().unwrap(), context.worker().unwrap());
    let net = other.address_net();
    assert_eq!(net.transports().collect::<Vec<_>>(), ["efa"]);
    assert!(net.pack().len() < other.address().pack().len());
    assert_eq!(exchange(&one, &other, &net.pack()), ["efa"]);
    // Both addresses of a worker may be in use.
    assert_ne!(exchange(&one, &other, &other.address().pack())[0], "efa");
    let none = self::context("self,posix").worker().unwrap().address_net();
    assert_eq!(none.transports().count(), 0);
    assert!(one.connect(&Address::unpack(&none.pack()).unwrap(), EpParams::default()).is_err());
}

/// As MPI's tables have it: at any offset, with other bytes behind.
#[test]
fn address_in_a_table_connects() {
    let context = context("posix,efa");
    let (one, other) = (context.worker().unwrap(), context.worker().unwrap());
    for shift in 0..3 {
        let table = [vec![0xee; shift], other.address().pack(), vec![0xee; 40]].concat();
        exchange(&one, &other, &table[shift..]);
    }
}

#[test]
fn fuzz_corpus_is_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/address");
    let inputs = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let (mut read, mut all) = (0, 0);
    for input in inputs {
        all += 1;
        if let Ok(address) = Address::unpack(&input) {
            read += 1;
            assert_eq!(Address::unpack(&address.pack()), Ok(address));
        }
    }
    assert!(read > 10 && all > read, "{read} of {all} inputs are addresses");
}
