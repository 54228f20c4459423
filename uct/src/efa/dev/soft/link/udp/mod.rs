//! The link to processes of other hosts: the reliability of [`usnic`] over datagrams.
//!
//! * `nic`: the engine with its socket. * `state`: peers, requests, responses. * `arrive`, `serve`: what
//!   comes and what goes. * `requests`: what waits. * `locals`: delivery to queue pairs of this process.
//! * `head`: the 32 bytes before each payload. * `admission`: who may connect. * `remote`: the send side.
//! * `socket`: batches of datagrams. * `interfaces`: addresses of this host. * `hosts`: those of the job.
//! * `listen`: where the sockets listen. * `size`: lengths of datagrams, windows and buffers. * `secrets`:
//!   what seals datagrams. * `channel_schedule`: which channel a poll looks at. * `thread`: the NIC's thread.
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
mod listen;
mod locals;
mod nic;
mod remote;
mod requests;
mod secrets;
mod serve;
mod size;
mod socket;
mod state;
#[cfg(test)]
mod tests;
mod thread;

pub use head::describe as describe_head;
pub use interfaces::{Local, choose as local_address};
pub use remote::UdpRemoteQp;
pub use size::{header_len, longest_datagram, rcvbuf_for, window};

use super::TryOutcome;
use super::shm::Shm;
use crate::api::{DeviceCounters, Error, OpenError};
use crate::efa::dev::soft::capture::datagrams::DatagramCapture;
use crate::efa::dev::soft::job_secret::JobSecret;
use crate::efa::dev::soft::secret::JOB;
use crate::efa::dev::soft::user_secret;
use admission::{Admission, Policy, UnauthenticatedLog};
use arrayvec::ArrayVec;
use listen::{advertised, bind, bind_addr};
use nic::{LossModel, Nic};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use secrets::{load_secret, random_seed};
use socket::SocketConfig;
use state::State;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Instant, SystemTime};
use ucs::sys::proc;
use usnic::addr::Node;
use usnic::auth::{Auth, AuthConfig, AuthStats, OVERHEAD};
use usnic::{ChannelConfig, Config, Module, Stats};

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
        nic.is_polled = now.saturating_sub(self.0.polled.load(Relaxed)) < thread::IDLE_NS;
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

/// Keepalive interval such that all probes together take `timeout`.
fn keepalive(timeout: u64) -> u64 {
    timeout / u64::from(Config::default().probes + 2)
}

#[cfg(test)]
mod node_tests {
    use super::*;

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
}
