//! The parameters of a job, drawn from its seed: network, queues, sizes, and each worker's device. Extremes
//! are drawn on purpose: queues of one entry, everything out of order.

use crate::rng::Rng;
use crate::sizes::Sizes;
use ucp::mt::ThreadMode;
use ucp::wire::Features;
use uct::efa::dev::DevStatus;
use uct::efa::dev::soft::{FaultPlan, Generation};

/// Largest number of workers of a job.
pub const MAX_WORKERS: usize = 64;

/// The range of a job. Each scope includes those before it; a failing seed fails in its own scope only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// Messages, streams, active messages and memory.
    First,
    /// Adds multi-receives.
    MultiRecv,
    /// Adds revoked memory, every form of a send, and cancelled active messages and streams.
    Forms,
    /// Adds atomics on lists, received stream data, discards, detached sends, cancelled flushes.
    AtomicLists,
    /// Adds workers in zero-copy receive mode.
    ZcopyRecv,
    /// Adds several NICs for each worker, one of which fails.
    Nics,
    /// Adds workers in zero-copy receive mode, with one NIC, among others with several.
    Mixed,
    /// Adds receives into several pieces.
    RecvIov,
    /// Adds two workers of one context, and workers that threads may share.
    Contexts,
}

/// The size of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Workers, at most `MAX_WORKERS`; 0 draws two to eight.
    pub workers: usize,
    /// Messages each worker sends, to any worker including itself.
    pub messages: u64,
    /// The range of operations.
    pub scope: Scope,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { workers: 0, messages: 48, scope: Scope::Contexts }
    }
}

/// One worker's device, and the features that it hides.
#[derive(Clone, Copy, Debug)]
pub struct WorkerParams {
    pub generation: Generation,
    /// Features that the worker has and does not announce.
    pub withheld: Features,
    /// Memory regions beside those that the worker needs itself.
    pub spare_regions: u32,
    pub zcopy_recv: bool,
    /// The first worker of its context: itself, or the one before it. Both use the devices of the first.
    pub first_of_context: usize,
    /// Threads may share it, in this mode. (The job is one thread.)
    pub shared: Option<ThreadMode>,
}

#[derive(Clone, Debug)]
pub struct JobParams {
    pub workers: Vec<WorkerParams>,
    /// Probability that a device refuses a registration.
    pub refusal: f64,
    /// Longest RDMA operation, bytes.
    pub max_rdma: u32,
    /// Percent of closes that are by force, or give little time.
    pub force: u64,
    pub death: bool,
    pub faults: FaultPlan,
    /// Longest packet, bytes.
    pub mtu: u32,
    pub tx: u32,
    pub rx: u32,
    pub spare: u32,
    /// Time between two tries at a receiver that is not ready, ns.
    pub rnr_interval: u64,
    /// Retries of a device at a receiver that is not ready, before it returns the packet.
    pub rnr_retry: u8,
    /// `UCX_RNDV_THRESH`, if set.
    pub rndv: Option<usize>,
    /// `UCX_MIN_READ`, if set.
    pub min_read: Option<usize>,
    /// `UCX_MIN_READ_WRITE`, if set.
    pub min_read_write: Option<usize>,
    /// `UCX_MIN_RDMA_PUT` and `UCX_MIN_RDMA_GET`.
    pub min_rdma: usize,
    /// `UCX_RUNT_SIZE`.
    pub runt: usize,
    /// `UCX_READ_SEGMENT`.
    pub segment: usize,
    pub batch: usize,
    pub sizes: Sizes,
    pub user_tags: u64,
    /// Percent of receives that name a whole tag.
    pub exact: u64,
    /// Percent of receives that name their sender.
    pub from: u64,
    /// Percent of sync sends.
    pub sync: u64,
    /// Percent of untagged messages.
    pub untagged: u64,
    /// Percent of receives that may be too short.
    pub short: u64,
    /// Weights of random steps, from here to `rma`, `ams` and `streams`.
    pub send: u64,
    pub recv: u64,
    pub progress: u64,
    /// Weight of probes, cancels, flushes and closes.
    pub other: u64,
    /// Weight of one-sided operations.
    pub rma: u64,
    pub ams: u64,
    /// Weight of stream operations.
    pub streams: u64,
    /// Percent of messages with data for the receiver's completion.
    pub cq_data: u64,
    pub window: usize,
    /// Percent of endpoints made at the start; others are made at the first send.
    pub connected: u64,
    /// Percent of receives that are multi-receives.
    pub multi_recv: u64,
    /// Weight of mapping, using and revoking memory.
    pub revocable: u64,
    /// Receives posted to the device, in zero-copy receive mode.
    pub posted_recvs: u32,
    /// NICs of each worker that is not in zero-copy receive mode.
    pub nics: usize,
    pub fail_nic: bool,
}

impl JobParams {
    /// Whether devices fail requests, so that any pair may be lost.
    pub fn failing(&self) -> bool {
        self.faults.fail > 0.0
    }

    pub fn draw(rng: &mut Rng, limits: Limits) -> JobParams {
        let count = match limits.workers {
            0 => rng.range(2, 8) as usize,
            some => some,
        };
        let refusal = *rng.pick(&[0.0, 0.0, 0.2, 1.0]);
        let mixed = rng.percent(50);
        let workers: Vec<WorkerParams> = (0..count).map(|n| worker_params(rng, n, mixed)).collect();
        // A worker that cannot read, and has a sender without READ_NACK, can only fail.
        let able = workers.iter().all(|h| !h.withheld.contains(Features::READ_NACK));
        let mtu = *rng.pick(&[256, 512, 1024, 4096, 8928, 8928]);
        let rndv = *rng.pick(&[None, None, Some(0), Some(2048), Some(16_384)]);
        let max = *rng.pick(&[64usize, 4096, 20_000, 80_000, 150_000]);
        let min_read = *rng.pick(&[None, None, Some(0), Some(3000), Some(16_384)]);
        // Bounds the packets of a message, or small MTUs would make the longest runs.
        let max = max.min(mtu as usize * 24);
        let cuts = vec![mtu as usize - 56, mtu as usize - 20, rndv.unwrap_or(65_536).max(1) - 1];
        let mut params = JobParams {
            refusal: if able { refusal } else { 0.0 },
            workers: match able {
                true => workers,
                false => workers.into_iter().map(|h| WorkerParams { spare_regions: 1000, ..h }).collect(),
            },
            max_rdma: *rng.pick(&[1 << 30, 1 << 30, 9000, 1000]),
            death: count > 2 && rng.percent(25),
            faults: faults(rng),
            force: *rng.pick(&[0, 0, 0, 5, 30]),
            mtu,
            tx: depth(rng),
            rx: depth(rng),
            spare: *rng.pick(&[0, 0, 1, 8, 128]),
            rnr_interval: rng.range(1_000, 50_000),
            rnr_retry: *rng.pick(&[0, 1, 3, 3, 7]),
            rndv,
            min_read,
            min_read_write: *rng.pick(&[None, Some(0), Some(3000)]),
            min_rdma: *rng.pick(&[0, 0, 3000, usize::MAX]),
            runt: *rng.pick(&[0, 0, 1000, 10_000]),
            segment: *rng.pick(&[1 << 30, 5000, 700]),
            batch: *rng.pick(&[1, 2, 8, 32]),
            sizes: Sizes::new(max, cuts),
            user_tags: rng.range(1, 4),
            exact: rng.below(60),
            from: rng.below(50),
            sync: *rng.pick(&[0, 5, 20, 80]),
            untagged: *rng.pick(&[0, 10, 30]),
            short: *rng.pick(&[0, 0, 5, 15]),
            send: rng.range(5, 40),
            recv: rng.range(5, 40),
            progress: rng.range(10, 80),
            other: rng.range(0, 20),
            window: rng.range(1, 48) as usize,
            connected: *rng.pick(&[0, 50, 100]),
            rma: *rng.pick(&[0, 5, 20]),
            ams: *rng.pick(&[0, 5, 15]),
            streams: *rng.pick(&[0, 5, 15]),
            cq_data: *rng.pick(&[0, 0, 20]),
            // Drawn behind all others, which stay as they were without it.
            multi_recv: *rng.pick(&[0, 5, 15, 40]),
            revocable: *rng.pick(&[0, 0, 5, 15]) * u64::from(limits.scope >= Scope::Forms),
            posted_recvs: 0,
            nics: 1,
            fail_nic: false,
        };
        if limits.scope >= Scope::ZcopyRecv {
            params.draw_zcopy_recv(rng);
        }
        let all_may = params.workers.iter().all(|worker_params| !worker_params.zcopy_recv)
            || limits.scope >= Scope::Mixed;
        if limits.scope >= Scope::Nics && all_may {
            params.nics = *rng.pick(&[1, 1, 1, 2, 3]);
            params.fail_nic = params.nics > 1 && rng.percent(60);
        }
        if limits.scope >= Scope::Contexts {
            params.draw_contexts(rng);
        }
        params
    }

    /// Makes pairs of workers share a context, in two fifths of the jobs, and some workers shared ones, in
    /// half of them.
    fn draw_contexts(&mut self, rng: &mut Rng) {
        let percent = if rng.percent(40) { 70 } else { 0 };
        for n in (1..self.workers.len()).step_by(2) {
            let first = self.workers[n - 1];
            if rng.percent(percent) && !first.zcopy_recv && !self.workers[n].zcopy_recv {
                self.workers[n] = first;
            }
        }
        let percent = *rng.pick(&[0, 60]);
        for worker_params in &mut self.workers {
            let mode = *rng.pick(&[ThreadMode::Single, ThreadMode::Serialized, ThreadMode::Multi]);
            worker_params.shared = rng.percent(percent).then_some(mode);
        }
    }

    /// Workers of the context of `n`.
    pub fn context_of(&self, n: usize) -> impl Iterator<Item = usize> {
        let of = |n: usize| self.workers[n].first_of_context;
        (0..self.workers.len()).filter(move |other| of(*other) == of(n))
    }

    /// Puts some workers of some jobs into zero-copy receive mode. Each of their receives is a registration.
    fn draw_zcopy_recv(&mut self, rng: &mut Rng) {
        self.posted_recvs = *rng.pick(&[1, 2, 5, 64]);
        let percent = if self.refusal < 1.0 { *rng.pick(&[0, 0, 30, 60]) } else { 0 };
        for worker_params in &mut self.workers {
            worker_params.zcopy_recv = rng.percent(percent);
            if worker_params.zcopy_recv {
                worker_params.spare_regions = 1000;
                // A worker that hides the mode hides active messages and streams too.
                let silent = Features::USER_RECV_QP | Features::CLASSES;
                worker_params.withheld.set(silent, rng.percent(30));
            }
        }
    }
}

/// In a `mixed` job, devices are of all generations, and some features are hidden.
fn worker_params(rng: &mut Rng, n: usize, mixed: bool) -> WorkerParams {
    let spare_regions = *rng.pick(&[1000, 1000, 2, 1, 0]);
    if !mixed {
        return WorkerParams {
            generation: Generation::Efa2,
            withheld: Features::empty(),
            spare_regions,
            zcopy_recv: false,
            first_of_context: n,
            shared: None,
        };
    }
    let mut withheld = Features::empty();
    for bit in [
        Features::DELIVERY_COMPLETE,
        Features::CONNID,
        Features::READ_NACK,
        Features::CLASSES,
        Features::RDMA_READ,
        Features::RUNT_READ,
    ] {
        withheld.set(bit, rng.percent(15));
    }
    let generation = *rng.pick(&[Generation::Efa0, Generation::Efa1, Generation::Efa2, Generation::Efa3]);
    WorkerParams { generation, withheld, spare_regions, zcopy_recv: false, first_of_context: n, shared: None }
}

fn faults(rng: &mut Rng) -> FaultPlan {
    FaultPlan {
        reorder: rng.below(101) as f64 / 100.0 * f64::from(u8::from(rng.percent(80))),
        window: rng.range(1, 60_000),
        delay: *rng.pick(&[0, 0, 500, 5_000]),
        jitter: *rng.pick(&[0, 100, 3_000]),
        rnr: *rng.pick(&[0.0, 0.0, 0.02, 0.3]),
        fail: *rng.pick(&[0.0, 0.0, 0.0, 0.0, 0.0005]),
        fail_status: *rng.pick(&[DevStatus::Unresponsive, DevStatus::Unreachable]),
        ..FaultPlan::NONE
    }
}

fn depth(rng: &mut Rng) -> u32 {
    *rng.pick(&[1, 2, 3, 4, 8, 16, 64])
}
