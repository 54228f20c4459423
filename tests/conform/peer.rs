//! The peer of the peer-failure cases: started with a transport and a device, and killed.

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [tl, dev] = &args[..] else { panic!("a transport and a device") };
    suites::conform::peer_failure::run_peer(tl, dev);
}
