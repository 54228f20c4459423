//! The link to processes of other hosts: the reliability of [`usnic`] over datagrams.
//!
//! * `nic`: the engine with its socket. * `state`: peers, requests, responses. * `arrive`, `serve`: what
//!   comes and what goes. * `requests`: what waits. * `locals`: delivery to queue pairs of this process.
//! * `head`: the 32 bytes before each payload. * `admission`: who may connect. * `remote`: the send side.
//! * `socket`: batches of datagrams. * `interfaces`: addresses of this host. * `hosts`: those of the job.
//! * `channel_schedule`: which channel a poll looks at. * `thread`: the NIC's thread.
//! * `at_exit`: the goodbye of a process that ends.
//!
//! One NIC serves all contexts of a device in this process: its GID names its address. A request is pending
//! until the far side has decided: the response, not the acknowledgement of a datagram, completes it.

mod admission;
mod arrive;
mod at_exit;
mod channel_schedule;
mod head;
mod hosts;
mod interfaces;
mod locals;
mod nic;
mod remote;
mod requests;
mod serve;
mod socket;
mod state;
#[cfg(test)]
mod tests;
mod thread;

pub use head::describe as describe_head;
pub use interfaces::{Local, choose as local_address};
pub use remote::UdpRemoteQp;

use super::TryOutcome;
use super::shm::Shm;
use crate::api::{DeviceCounters, Error, OpenError};
use crate::efa::dev::soft::capture::datagrams::DatagramCapture;
use crate::efa::dev::soft::job_secret::{self, JobSecret};
use crate::efa::dev::soft::secret::{self, JOB};
use crate::efa::dev::soft::user_secret;
use admission::{Admission, Policy, UnauthenticatedLog};
use arrayvec::ArrayVec;
use nic::{LossModel, Nic};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use socket::{Socket, SocketConfig};
use state::State;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Instant, SystemTime};
use ucs::sys::proc;
use usnic::addr::{Advertised, BadSetting, Node};
use usnic::auth::{Auth, AuthConfig, AuthStats, OVERHEAD, Secret};
use usnic::{ChannelConfig, Config, Module, Stats};

/// Longest datagram used: it holds a message of the default length whole, where the path carries it.
const MAX_DATAGRAM: u32 = 9216;
/// Smallest window of the engine, segments.
const MIN_WINDOW: u32 = 64;
/// Without a peer the socket is looked at once in so many polls.
const POLLS_WITHOUT_PEER: u64 = 64;

/// The node that an interface id names, if it is one of a device that is reached over UDP.
pub(super) fn node_of(iid: u64) -> Option<Node> {
    let has_address = |node: &Node| node.socket_addr_v4().is_none_or(|addr| !addr.ip().is_unspecified());
    Node::from_u64(iid).filter(has_address)
}

/// Settings of the link.
#[derive(Clone, PartialEq, Debug)]
pub struct UdpConfig {
    /// Interface name, address, or network (`10.0.0.0/8`) that decides the local address; empty: loopback.
    pub net: String,
    /// Address by which peers reach this host; empty: the local one.
    pub address: String,
    /// IPv6 hosts of the job; empty: those of the own /96 network.
    pub hosts: String,
    /// First and last port to try; 0: any.
    pub ports: (u16, u16),
    /// File with the secret of the job; empty: none.
    pub secret_file: String,
    /// Whether the launcher of the job passes on a secret.
    pub job_secret: JobSecret,
    /// Whether anybody may connect.
    pub insecure: bool,
    /// Whether peers of this host are reached over UDP, too.
    pub only: bool,
    /// Longest datagram with its headers; 0: that of the network interface.
    pub mtu: u32,
    /// Whether the kernel cuts and joins datagrams, where it can.
    pub offload: bool,
    /// Whether each channel has a socket, where the kernel can.
    pub channels: bool,
    /// Flows to each peer.
    pub flows: u8,
    /// Segments that may be on their way to a peer.
    pub window: u32,
    /// Silence after which a peer is dead, ns.
    pub timeout: u64,
    /// Time for which the kernel polls the network card, µs.
    pub busy_poll: u32,
    /// Probability that a datagram is lost by its sender.
    pub loss: f64,
    /// Capture of its datagrams; empty: none.
    pub pcap: String,
}

/// A NIC, and who has opened it with which settings.
struct Opened {
    pid: u32,
    nth: usize,
    config: UdpConfig,
    udp: Udp,
}

/// NICs of this process, which stay until it ends; and those of the processes that it was forked from.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// The NIC of a device, shared by its contexts in this process.
#[derive(Clone)]
pub struct Udp(Arc<Shared>);

struct Shared {
    iid: u64,
    /// Tag of the job, which comes of its secret; empty without one.
    job: String,
    pid: u32,
    ip: IpAddr,
    only: bool,
    opened: Instant,
    /// When the program polled last, ns since `opened`.
    polled: AtomicU64,
    has_peers: AtomicBool,
    /// The sockets at which datagrams arrive, for the thread's sleep.
    sockets: ArrayVec<OwnedFd, 2>,
    nic: Mutex<Nic>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    fn is_polled(&self, within: u64) -> bool {
        self.now().saturating_sub(self.polled.load(Relaxed)) < within
    }

    fn nic(&self) -> MutexGuard<'_, Nic> {
        // A panic under the lock is a bug; what it leaves is consistent between any two datagrams.
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Udp {
    /// Opens the NIC of device `nth`, or returns the one that this process has open with these settings.
    pub(in crate::efa::dev::soft) fn open(
        nth: usize,
        config: &UdpConfig,
        mtu: u32,
        (rnr_interval, seed): (u64, u64),
    ) -> Result<Udp, OpenError> {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = proc::pid();
        if let Some(found) = opened.iter().find(|it| (it.pid, it.nth, &it.config) == (pid, nth, config)) {
            return Ok(found.udp.clone());
        }
        let udp = Udp::create(nth, config, mtu, (rnr_interval, seed))?;
        thread::start(&udp.0)?;
        opened.push(Opened { pid, nth, config: config.clone(), udp: udp.clone() });
        Ok(udp)
    }

    fn create(
        nth: usize,
        config: &UdpConfig,
        mtu: u32,
        (rnr_interval, seed): (u64, u64),
    ) -> Result<Udp, OpenError> {
        let local = bind_addr(interfaces::choose(&config.net)?, config)?;
        let key = load_secret(config, local.ip, user_secret::load)?;
        let hosts = hosts::addresses(&config.hosts)?;
        let datagram = longest_datagram(local.ip, local.mtu, config.mtu);
        let sockets = SocketConfig {
            longest: datagram as usize,
            offload: config.offload,
            channels: config.channels,
            flows: config.flows,
            busy_poll: config.busy_poll,
            arrivals: rcvbuf_for(datagram, config.window),
        };
        let socket = bind(local.ip, config.ports, sockets)?;
        let addr = advertised(&config.address, socket.addr())?;
        let iid = Node::new(nth as u8, addr).as_u64();
        let opened = Instant::now();
        let epoch = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
        let segment = datagram - key.as_ref().map_or(0, |_| OVERHEAD as u32);
        let settings = Config {
            data: ChannelConfig { mtu: segment, ..Config::default().data },
            window: window(socket.holds(), datagram).min(config.window),
            flows: config.flows,
            ports: socket.flow_ports(),
            keepalive: keepalive(config.timeout),
            first_seq: (seed >> 32) as u32,
            salt: seed as u32,
            epoch,
            node: iid,
            features: head::RESPONSE_IN_HEAD,
            ..Config::default()
        };
        // Half as long as for one that was heard before: it may not be there at all.
        let connecting = config.timeout / 2;
        let settings = settings.connecting_for(connecting);
        let shown: Result<_, _> = socket.arriving().map(|fd| fd.try_clone_to_owned()).collect();
        let shown = shown.map_err(|e| OpenError::Op(Error::Sys { call: "dup", errno: e.into() }))?;
        let of_job = key.as_ref().filter(|key| key.is_of_job);
        let job = of_job.map_or_else(String::new, |key| key.secret.tag(JOB));
        let policy = Policy::new(key.is_some(), config.insecure);
        let unauthenticated = UnauthenticatedLog::new(of_job.is_some());
        let auth = key.map(|key| {
            let seed = random_seed()?;
            Ok::<_, OpenError>(Box::new(Auth::new(
                AuthConfig::default().connecting_for(connecting),
                &key.secret,
                iid,
                &seed,
            )))
        });
        let losses = LossModel { probability: config.loss, rng: ChaCha8Rng::seed_from_u64(seed) };
        let mut state = State::new(iid, local.ip, mtu, rnr_interval);
        let named = state.nodes.add_hosts(hosts);
        named.map_err(|why| OpenError::Config(format!("SOFTEFA_UDP_HOSTS={}: {why}", config.hosts)))?;
        let capture = match &*config.pcap {
            "" => None,
            name => Some(Box::new(DatagramCapture::open(name, socket.addr(), socket.flow_ports())?)),
        };
        let nic = Nic::new(
            (Module::new(settings, 0), capture),
            socket,
            state,
            (Admission { policy, refused: 0 }, unauthenticated, losses),
            auth.transpose()?,
        );
        Ok(Udp(Arc::new(Shared {
            iid,
            job,
            pid: proc::pid(),
            ip: local.ip,
            only: config.only,
            opened,
            polled: AtomicU64::new(0),
            has_peers: AtomicBool::new(false),
            sockets: shown,
            nic: Mutex::new(nic),
        })))
    }

    /// Interface id, which names the address.
    pub(in crate::efa::dev::soft) fn iid(&self) -> u64 {
        self.0.iid
    }

    /// Tag of the job, which comes of its secret; empty without one.
    pub(in crate::efa::dev::soft) fn job(&self) -> &str {
        &self.0.job
    }

    /// Serves another context of the device.
    pub(in crate::efa::dev::soft) fn add_context(&self, context: &Shm) {
        self.0.nic().state.locals.add_context(context);
    }

    /// Counters of the engine, and datagrams that were refused before they reached it.
    pub fn stats(&self) -> (Stats, u64) {
        let nic = self.0.nic();
        (*nic.module.stats(), nic.admission.refused)
    }

    /// Counters of the sessions, if the job has a secret.
    pub fn auth_stats(&self) -> Option<AuthStats> {
        self.0.nic().auth_stats().copied()
    }

    /// Sessions with peers, and handshakes on their way.
    #[cfg(test)]
    pub(super) fn sessions(&self) -> usize {
        self.0.nic().sessions()
    }

    /// Counters of the engine, the socket and the sessions.
    pub(super) fn counters(&self) -> Vec<DeviceCounters> {
        let nic = self.0.nic();
        let engine = nic.module.stats();
        let mut counts: Vec<_> = engine.counters().collect();
        counts.push(("refused", nic.admission.refused));
        counts.extend(nic.socket.counts());
        let times = vec![("round trips", engine.rtt.to_vec())];
        let mut all = vec![DeviceCounters { part: "udp", counts, times }];
        if let Some(sessions) = nic.auth_stats() {
            all.push(DeviceCounters {
                part: "udp session",
                counts: sessions.counters().collect(),
                times: Vec::new(),
            });
        }
        all
    }

    /// Whether peers of this host are reached over UDP, too.
    pub(super) fn udp_only(&self) -> bool {
        self.0.only
    }

    /// Whether a device with this interface id is on this host, as far as its address tells.
    pub(super) fn is_here(&self, iid: u64) -> bool {
        let Some(node) = node_of(iid) else { return false };
        let is_loopback = node.socket_addr_v4().is_some_and(|addr| addr.ip().is_loopback());
        is_loopback || node == Node::new(node.device(), SocketAddr::new(self.0.ip, node.port()))
    }

    /// A queue pair that is reached over UDP; whether it is there, its responses will tell.
    pub(super) fn remote(&self, dev: &Shm, iid: u64, qpn: u16) -> UdpRemoteQp {
        UdpRemoteQp::new(self.clone(), dev.clone(), iid, qpn)
    }

    /// Calls `f` under the lock of the NIC. In a forked child the NIC is the parent's, and nothing is sent.
    fn with_nic(&self, f: impl FnOnce(&mut Nic, u64) -> TryOutcome) -> TryOutcome {
        if self.0.pid != proc::pid() {
            return TryOutcome::Busy;
        }
        self.0.has_peers.store(true, Relaxed);
        let mut nic = self.0.nic();
        let now = self.0.now();
        nic.is_polled = now.saturating_sub(self.0.polled.load(Relaxed)) < thread::AWAY_NS;
        f(&mut nic, now)
    }

    /// Does the NIC's work, unless another thread does. `polls` counts the polls of a completion queue.
    #[cold]
    pub(super) fn on_poll(&self, polls: u64) {
        let shared = &*self.0;
        let is_due = shared.has_peers.load(Relaxed) || polls.is_multiple_of(POLLS_WITHOUT_PEER);
        if !is_due || shared.pid != proc::pid() {
            return;
        }
        let nic = match shared.nic.try_lock() {
            Err(TryLockError::Poisoned(nic)) => Ok(nic.into_inner()),
            nic => nic,
        };
        // Behind the lock: with an older time than others have used a round trip would be too short.
        let now = shared.now();
        // Also a program that finds the lock taken, by the thread, polls.
        shared.polled.store(now, Relaxed);
        let Ok(mut nic) = nic else { return };
        nic.progress(now);
        shared.has_peers.store(nic.module.peers() != 0, Relaxed);
    }

    /// Takes an outcome for a local queue pair.
    pub(super) fn next_outcome(&self, qpn: u16) -> Option<(u32, TryOutcome)> {
        if self.0.pid != proc::pid() {
            return None;
        }
        self.0.nic().state.next_outcome(qpn)
    }

    /// Forgets the requests of a local queue pair.
    pub(super) fn give_up(&self, qpn: u16) {
        if self.0.pid == proc::pid() {
            self.0.nic().state.give_up(qpn);
        }
    }

    /// Takes a queue pair that was created.
    pub(super) fn on_qp_created(&self) {
        if self.0.pid == proc::pid() {
            self.0.nic().state.qps += 1;
        }
    }

    /// Takes a queue pair that was destroyed. With the last one of all contexts the NIC leaves its peers.
    pub(super) fn on_qp_destroyed(&self) {
        if self.0.pid != proc::pid() {
            return;
        }
        let mut nic = self.0.nic();
        nic.state.qps = nic.state.qps.saturating_sub(1);
        if nic.state.qps == 0 {
            let now = self.0.now();
            nic.leave(now);
        }
    }

    /// Waits until no thread copies to or from memory of this process whose key is gone.
    pub(super) fn await_copies(&self) {
        if self.0.pid == proc::pid() {
            drop(self.0.nic());
        }
    }
}

/// Bytes of a datagram that the headers of IP and UDP take.
pub fn header_len(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// Longest datagram that is sent from an interface with this address, where `mtu` limits it; 0: it does not.
pub fn longest_datagram(ip: IpAddr, of_interface: u32, mtu: u32) -> u32 {
    let path = if mtu == 0 { of_interface } else { mtu.min(of_interface) };
    path.saturating_sub(header_len(ip)).min(MAX_DATAGRAM)
}

/// A secret that seals datagrams.
struct Key {
    secret: Secret,
    /// Whether it is the job's; else the user's on this host.
    is_of_job: bool,
}

/// Loads the secret that seals datagrams: the job's or, where the device listens beyond the loopback
/// interface and has none, the one `of_user`, this user's on this host. `None`: nothing is sealed.
fn load_secret(
    config: &UdpConfig,
    ip: IpAddr,
    of_user: impl FnOnce() -> Result<Secret, String>,
) -> Result<Option<Key>, OpenError> {
    let of_job = match (&*config.secret_file, config.job_secret) {
        ("", JobSecret::None) => None,
        ("", JobSecret::Pmix) => Some(job_secret::load()?),
        (path, JobSecret::None) => Some(secret::load(path)?),
        (_, JobSecret::Pmix) => {
            return Err(OpenError::Config(
                "SOFTEFA_SECRET_FILE and SOFTEFA_JOB_SECRET exclude each other".into(),
            ));
        }
    };
    if of_job.is_some() || ip.is_loopback() || config.insecure {
        return Ok(of_job.map(|secret| Key { secret, is_of_job: true }));
    }
    let secret = of_user().map_err(|why| {
        OpenError::Environment(format!(
            "the software EFA device does not listen at {ip} without a secret ({why}): set SOFTEFA_SECRET_FILE (or \
             SOFTEFA_JOB_SECRET=pmix under mpirun or srun), or SOFTEFA_INSECURE=y if everybody who can send to it may read \
             and write the memory that programs register"
        ))
    })?;
    tracing::info!(
        "the device at {ip} has no secret of a job: only processes of this user on this host reach it (SOFTEFA_SECRET_FILE)"
    );
    Ok(Some(Key { secret, is_of_job: false }))
}

/// Bytes of a socket's buffer that a datagram of this length takes: the kernel counts its own memory, too.
fn truesize(datagram: u32) -> usize {
    datagram as usize * 3 / 2 + 256
}

/// Datagrams on their way to a socket that it has room for, where its buffer has `holds` bytes, as the kernel
/// counts them: what does not fit is lost. A power of two, of [`UdpConfig::window`]'s range.
pub fn window(holds: usize, datagram: u32) -> u32 {
    let most = Config::default().window;
    let fit = u32::try_from(holds / truesize(datagram)).unwrap_or(most).clamp(MIN_WINDOW, most);
    1 << fit.ilog2()
}

/// Bytes to ask of the kernel for arrivals, so that so many datagrams of this length fit. It counts twice as
/// many.
pub fn rcvbuf_for(datagram: u32, window: u32) -> usize {
    (truesize(datagram) * window as usize).div_ceil(2)
}

/// Time between two looks at a silent peer, of which all together take as long as it is waited for.
fn keepalive(timeout: u64) -> u64 {
    timeout / u64::from(Config::default().probes + 2)
}

/// Random bytes of the system.
fn random_seed() -> Result<[u8; 32], OpenError> {
    let mut seed = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed));
    read.map_err(|e| OpenError::Op(Error::Sys { call: "/dev/urandom", errno: e.into() }))?;
    Ok(seed)
}

/// Binds the first port of the range that is free.
fn bind(ip: IpAddr, (first, last): (u16, u16), config: SocketConfig) -> Result<Socket, OpenError> {
    let mut failed = None;
    for port in first..=last.max(first) {
        match Socket::bind((ip, port).into(), config) {
            Ok(socket) => return Ok(socket),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(|| OpenError::Config("SOFTEFA_UDP_PORTS names no port".into())))
}

/// The local address of the sockets. On a host with several, the one that peers are told is meant: datagrams
/// leave from it. One that this host does not have is of a network in between that translates addresses; so
/// is one with a port that the device does not listen at.
fn bind_addr(chosen: Local, config: &UdpConfig) -> Result<Local, OpenError> {
    let Ok(told) = config.address.parse::<Advertised>() else { return Ok(chosen) };
    let (first, last) = config.ports;
    let is_ours = told.port.is_none_or(|port| (first..=last).contains(&port));
    if !is_ours || told.ip == chosen.ip {
        return Ok(chosen);
    }
    Ok(interfaces::own(told.ip)?.unwrap_or(chosen))
}

/// Address by which peers reach this host.
fn advertised(address: &str, local: SocketAddr) -> Result<SocketAddr, OpenError> {
    if address.is_empty() {
        return Ok(local);
    }
    let refused = |why: String| OpenError::Config(format!("SOFTEFA_UDP_ADDRESS={address}: {why}"));
    let told: Advertised = address.parse().map_err(|bad: BadSetting| refused(bad.to_string()))?;
    if told.ip.is_ipv4() != local.is_ipv4() {
        return Err(refused(format!("the device listens at {}, of the other kind of address", local.ip())));
    }
    Ok(told.socket_addr(local.port()))
}

#[cfg(test)]
mod address_tests {
    use super::*;
    use crate::efa::dev::soft::SoftConfig;
    use ucs::config::{Source, Table};

    #[test]
    fn without_a_secret_of_a_job_the_users_seals_what_leaves_the_loopback_interface() {
        // The user's own is not touched: other processes may have it.
        let folder = std::env::temp_dir().join(format!("softefa-address-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let of_user = || user_secret::load_from(folder.to_str().unwrap());
        let load = |ip: &str, insecure: &str| {
            let source = Source::empty().with("SOFTEFA_UDP", "y").with("SOFTEFA_INSECURE", insecure);
            let config = SoftConfig::load(&source).unwrap().udp().unwrap();
            load_secret(&config, ip.parse().unwrap(), of_user).unwrap()
        };
        assert!(load("127.0.0.1", "n").is_none() && load("::1", "n").is_none());
        assert!(load("10.0.0.1", "y").is_none());
        let [one, two] = ["10.0.0.1", "2001:db8::1"].map(|ip| load(ip, "n").unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(one.secret.tag("a test"), two.secret.tag("a test"));
        // By shared memory the process meets those without a secret.
        assert!(!one.is_of_job);
    }

    #[test]
    fn the_window_fits_the_socket() {
        assert_eq!(window(8 << 20, 1472), 2048);
        assert_eq!(window(425_984, 1472), 128);
        assert_eq!(window(425_984, 9000), 64, "the smallest");
        assert_eq!(window(usize::MAX, 1472), 4096, "the largest");
        // The kernel grants twice what it is asked for.
        for datagram in [1232, 1472, 8972, MAX_DATAGRAM] {
            for wanted in [64, 1024, 4096] {
                assert_eq!(window(2 * rcvbuf_for(datagram, wanted), datagram), wanted);
            }
        }
    }

    #[test]
    fn an_interface_id_names_a_node() {
        let iid = Node::new(2, "10.1.2.3:40000".parse().unwrap()).as_u64();
        assert_eq!((iid, node_of(iid).map(Node::as_u64)), (0x0a02_9c40_0a01_0203, Some(iid)));
        let iid = Node::new(0, "[2001:db8::3]:40000".parse().unwrap()).as_u64();
        assert_eq!((iid, node_of(iid).map(Node::as_u64)), (0x0e00_9c40_0000_0003, Some(iid)));
        for other in [0, 0x0202_9c40_0a01_0203, 0x0a02_0000_0a01_0203, 0x0a02_9c40_0000_0000] {
            assert_eq!(node_of(other), None, "{other:#x}");
        }
    }

    #[test]
    fn datagrams_leave_room_for_their_headers() {
        let [v4, v6] = ["10.0.0.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        assert_eq!((longest_datagram(v4, 1500, 0), longest_datagram(v6, 1500, 0)), (1472, 1452));
        assert_eq!((longest_datagram(v4, 65_536, 0), longest_datagram(v6, 9000, 1280)), (9216, 1232));
    }

    #[test]
    fn a_host_with_several_addresses_listens_at_the_one_that_peers_are_told() {
        let at = |address: &str, ports: &str| {
            let source = Source::empty().with("SOFTEFA_UDP", "y").with("SOFTEFA_UDP_ADDRESS", address);
            let source = if ports.is_empty() { source } else { source.with("SOFTEFA_UDP_PORTS", ports) };
            let config = SoftConfig::load(&source).unwrap().udp().unwrap();
            let chosen = interfaces::choose(&config.net).unwrap();
            bind_addr(chosen, &config).unwrap().ip.to_string()
        };
        assert_eq!(at("", ""), "127.0.0.1");
        assert_eq!(at("127.0.0.2", ""), "127.0.0.2");
        assert_eq!(at("127.0.0.2:4000", "4000-4001"), "127.0.0.2");
        // A translator has the port, or the address.
        assert_eq!(at("127.0.0.2:4000", ""), "127.0.0.1");
        assert_eq!(at("127.0.0.2:4000", "5000"), "127.0.0.1");
        assert_eq!((at("192.0.2.7", ""), at("2001:db8::7", "")), ("127.0.0.1".into(), "127.0.0.1".into()));
    }

    #[test]
    fn the_advertised_address_is_given_with_or_without_a_port() {
        let told = |text, local: &str| advertised(text, local.parse().unwrap()).ok().map(|it| it.to_string());
        for (text, local, want) in [
            ("", "127.0.0.1:7", "127.0.0.1:7"),
            ("10.0.0.1", "127.0.0.1:7", "10.0.0.1:7"),
            ("10.0.0.1:9", "127.0.0.1:7", "10.0.0.1:9"),
            ("", "[::1]:7", "[::1]:7"),
            ("2001:db8::7", "[::1]:7", "[2001:db8::7]:7"),
            ("[2001:db8::7]:9", "[::1]:7", "[2001:db8::7]:9"),
        ] {
            assert_eq!(told(text, local).as_deref(), Some(want), "{text}");
        }
        // Peers could not send to these, or not from a socket of the other kind.
        for bad in ["nowhere", "2001:db8::7", "10.0.0.1:0", "0.0.0.0"] {
            assert_eq!(told(bad, "127.0.0.1:7"), None, "{bad}");
        }
        assert_eq!(told("10.0.0.1", "[::1]:7"), None);
    }
}
