//! Copy-method tuner: chooses between a kernel copy and packets for messages between two processes of one
//! host, by measured times. The result depends on the distance of the two processors and changes while a
//! program runs. The receiver measures and decides ([`ReceiverTuner`]); the sender follows its answers and
//! tries the other method now and then ([`SenderTuner`]). Used by `lane` only. Pure: times are handed in, in
//! any unit that both methods share.

use std::fmt;

/// Number of size classes: 16 KiB and more, 32 KiB and more, and so on.
pub const SIZE_CLASSES: usize = 8;
const FIRST_LOG2: u32 = 14;

/// Size class of a length.
pub const fn size_class(len: usize) -> usize {
    let log = (len | 1).ilog2().saturating_sub(FIRST_LOG2) as usize;
    if log < SIZE_CLASSES { log } else { SIZE_CLASSES - 1 }
}

/// Shortest length of a size class.
pub const fn size_class_min(class: usize) -> usize {
    1 << (FIRST_LOG2 as usize + class)
}

/// How the bytes of a message are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum CopyMethod {
    /// The receiver has the kernel read it.
    Kernel,
    /// Both processors copy it through packets.
    #[default]
    Packets,
}

/// How the copy method is chosen (`UCX_KERNEL_COPY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum CopyPolicy {
    /// By the times measured.
    #[default]
    Auto,
    /// By the cost model: interface attributes or calibration.
    Estimated,
    /// Always the kernel, where it can.
    Kernel,
    /// Always packets.
    Packets,
    /// Alternately, for tests.
    Alternate,
}

impl CopyPolicy {
    const NAMES: [(&str, CopyPolicy); 5] = [
        ("auto", CopyPolicy::Auto),
        ("estimated", CopyPolicy::Estimated),
        ("kernel", CopyPolicy::Kernel),
        ("packets", CopyPolicy::Packets),
        ("alternate", CopyPolicy::Alternate),
    ];

    /// Whether the choice may change from one message to the next.
    pub const fn method_may_change(self) -> bool {
        matches!(self, CopyPolicy::Auto | CopyPolicy::Alternate)
    }
}

impl fmt::Display for CopyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = CopyPolicy::NAMES.iter().find(|(_, policy)| policy == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl ucs::config::ConfigValue for CopyPolicy {
    fn parse(text: &str) -> Option<CopyPolicy> {
        CopyPolicy::NAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, policy)| *policy)
    }

    fn expected() -> String {
        CopyPolicy::NAMES.map(|(name, _)| name).join(", ")
    }
}

/// Bytes of packets in one sample: single packets arrive in bursts.
const SAMPLE_BYTES: usize = 1 << 16;
/// Bytes of packets without a read in between after which their times are steady: two rounds of the 1 MiB
/// ring. Earlier packets are slow (the ring is not cached) or fast (the sender wrote them long ago).
const STEADY_BYTES: usize = 2 << 20;
/// Consecutive reads after which their times are steady: the first ones read memory that is not in this
/// processor's cache.
const STEADY_READS: u8 = 3;
/// Consecutive offers of one trial, and reads accepted for it without a comparison.
const TRIAL_READS: u8 = 6;
/// Offers declined between two trials of the kernel: soon after a change, and later.
const DECLINES_PER_TRIAL: (u8, u8) = (4, 32);
/// Minimum and maximum factor by which the other method must be faster.
const MARGIN: (f32, f32) = (1.08, 1.3);
/// Messages between two changes of [`CopyPolicy::Alternate`].
const ALTERNATE_RUN: u8 = 20;

/// Receiver's half, one per peer: measures messages and chooses the method of the next one.
#[derive(Clone, Debug)]
pub struct ReceiverTuner {
    /// Time per KiB by packets; 0: unknown.
    packets: f32,
    /// Bytes and time of the sample in progress.
    sample: (usize, u64),
    /// Bytes of packets since the last kernel read.
    bytes_since_read: usize,
    reads_in_row: u8,
    /// Time per KiB of a kernel read by size class; 0: unknown.
    kernel: [f32; SIZE_CLASSES],
    /// Reads to accept without a comparison.
    trial_reads: [u8; SIZE_CLASSES],
    /// Offers to decline until the next trial, and the value it restarts from.
    declines_left: [(u8, u8); SIZE_CLASSES],
    /// Bit set of the size classes that go by packets.
    by_packets: u8,
    /// Factor by which the other method must be faster; grows with each change and decays.
    margin: f32,
    alternate: u8,
}

/// Measured times of a size class per KiB, in the caller's unit.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct CopyTimes {
    /// By packets.
    pub packets: Option<f32>,
    /// By the kernel.
    pub kernel: Option<f32>,
    /// Method in use.
    pub method: CopyMethod,
}

impl Default for ReceiverTuner {
    fn default() -> Self {
        ReceiverTuner {
            packets: 0.0,
            sample: (0, 0),
            bytes_since_read: 0,
            reads_in_row: 0,
            kernel: [0.0; SIZE_CLASSES],
            trial_reads: [TRIAL_READS; SIZE_CLASSES],
            declines_left: [(DECLINES_PER_TRIAL.0, DECLINES_PER_TRIAL.0); SIZE_CLASSES],
            by_packets: 0,
            margin: MARGIN.0,
            alternate: 0,
        }
    }
}

fn per_kib(time: u64, len: usize) -> f32 {
    time as f32 * 1024.0 / len.max(1) as f32
}

impl ReceiverTuner {
    /// Records the time of a long packet. Waiting counts as far as the sender was copying.
    pub fn record_packet(&mut self, len: usize, time: u64) {
        self.reads_in_row = 0;
        self.bytes_since_read = self.bytes_since_read.saturating_add(len);
        let (bytes, sum) = (self.sample.0.saturating_add(len), self.sample.1.saturating_add(time));
        self.sample = (bytes, sum);
        if bytes < SAMPLE_BYTES {
            return;
        }
        self.sample = (0, 0);
        let took = per_kib(sum, bytes);
        // Alternating methods never settle; the old value must still fade.
        let weight = if self.bytes_since_read > STEADY_BYTES { 0.5 } else { 1.0 / 512.0 };
        self.packets = if self.packets > 0.0 { self.packets + (took - self.packets) * weight } else { took };
    }

    /// Records the time of a kernel read. Lengths below the first size class, such as pieces of a message,
    /// are ignored.
    pub fn record_read(&mut self, len: usize, time: u64) {
        let at = size_class(len);
        if len < size_class_min(at) {
            return;
        }
        (self.sample, self.bytes_since_read) = ((0, 0), 0);
        self.reads_in_row = self.reads_in_row.saturating_add(1);
        let (took, before) = (per_kib(time, len), self.kernel[at]);
        // Outliers are always too long, so a shorter time weighs more.
        let weight = if took < before { 0.75 } else { 0.125 };
        let weight = if took < before || self.reads_in_row > STEADY_READS { weight } else { 1.0 / 128.0 };
        self.kernel[at] =
            if before > 0.0 { before + (took.min(2.0 * before) - before) * weight } else { took };
    }

    /// Chooses the method for an offered message of `len` bytes.
    pub fn choose(&mut self, policy: CopyPolicy, len: usize) -> CopyMethod {
        let at = size_class(len);
        match policy {
            CopyPolicy::Auto => {}
            CopyPolicy::Alternate => {
                self.alternate = (self.alternate + 1) % (2 * ALTERNATE_RUN);
                return if self.alternate < ALTERNATE_RUN { CopyMethod::Kernel } else { CopyMethod::Packets };
            }
            CopyPolicy::Packets => return CopyMethod::Packets,
            CopyPolicy::Estimated | CopyPolicy::Kernel => return CopyMethod::Kernel,
        }
        if self.trial_reads[at] > 0 {
            self.trial_reads[at] -= 1;
            return CopyMethod::Kernel;
        }
        if self.packets == 0.0 {
            return CopyMethod::Kernel;
        }
        let bit = 1 << at;
        let (least, most) = MARGIN;
        let (now, other) = match self.by_packets & bit {
            0 => (self.kernel[at], self.packets),
            _ => (self.packets, self.kernel[at]),
        };
        if other * self.margin < now {
            self.by_packets ^= bit;
            self.declines_left[at] = (DECLINES_PER_TRIAL.0, DECLINES_PER_TRIAL.0);
            self.margin = (self.margin * 1.1).min(most);
        } else {
            self.margin += (least - self.margin) / 64.0;
        }
        if self.by_packets & bit == 0 {
            return CopyMethod::Kernel;
        }
        let (until_trial, restart) = &mut self.declines_left[at];
        if *until_trial == 0 {
            *restart = (2 * *restart).min(DECLINES_PER_TRIAL.1);
            *until_trial = *restart;
            self.trial_reads[at] = TRIAL_READS - 1;
            return CopyMethod::Kernel;
        }
        *until_trial -= 1;
        CopyMethod::Packets
    }

    /// Measured times for lengths of this class.
    pub fn times(&self, len: usize) -> CopyTimes {
        let at = size_class(len);
        CopyTimes {
            packets: (self.packets > 0.0).then_some(self.packets),
            kernel: (self.kernel[at] > 0.0).then_some(self.kernel[at]),
            method: if self.by_packets & 1 << at == 0 { CopyMethod::Kernel } else { CopyMethod::Packets },
        }
    }
}

/// Consecutive bytes sent by packets in one trial of packets.
const PACKET_TRIAL_BYTES: usize = STEADY_BYTES + 8 * SAMPLE_BYTES;
/// Bytes between two trials of packets: soon after a change, and later.
const PACKET_TRIAL_GAP: (usize, usize) = (6 << 20, 160 << 20);
/// Bytes between two trials of the kernel, likewise.
const KERNEL_TRIAL_GAP: (usize, usize) = (1 << 20, 16 << 20);

fn messages_in(bytes: usize, class: usize) -> u16 {
    bytes.div_ceil(size_class_min(class)).clamp(2, u16::MAX as usize) as u16
}

/// Sender's half, one per peer: decides whether to offer the next message for a read. Counts messages and
/// reads no clock.
#[derive(Clone, Debug, Default)]
pub struct SenderTuner {
    /// Messages until the next trial, by size class.
    until_trial: [u16; SIZE_CLASSES],
    /// Value `until_trial` restarts from.
    gap: [u16; SIZE_CLASSES],
    /// Messages of the current trial still to go by packets.
    packet_trial: [u16; SIZE_CLASSES],
    /// Trial offers without an answer.
    trial_offers: [u8; SIZE_CLASSES],
    /// Trial offers still to make.
    offers_left: [u8; SIZE_CLASSES],
    /// Bit set of the size classes used so far.
    seen: u8,
    /// Bit set of the size classes that are offered.
    kernel: u8,
    /// Bit set of the size classes whose first trial offer was read.
    first_read: u8,
}

impl SenderTuner {
    /// Method for the next message of `len` bytes; `estimate` is the cost model's choice, used first.
    pub fn next(&mut self, len: usize, estimate: CopyMethod) -> CopyMethod {
        let at = size_class(len);
        let bit = 1 << at;
        if self.seen & bit == 0 {
            self.seen |= bit;
            self.set_method(at, estimate);
        }
        if self.offers_left[at] > 0 {
            self.offers_left[at] -= 1;
            self.trial_offers[at] += 1;
            return CopyMethod::Kernel;
        }
        if self.packet_trial[at] > 0 {
            self.packet_trial[at] -= 1;
            return CopyMethod::Packets;
        }
        let is_kernel = self.kernel & bit != 0;
        if self.until_trial[at] > 0 {
            self.until_trial[at] -= 1;
            return if is_kernel { CopyMethod::Kernel } else { CopyMethod::Packets };
        }
        self.until_trial[at] = self.gap[at];
        if is_kernel {
            // The receiver measures the packets and declines the next offer if they are faster.
            self.widen_gap(at, PACKET_TRIAL_GAP.1);
            self.packet_trial[at] = messages_in(PACKET_TRIAL_BYTES, at) - 1;
            return CopyMethod::Packets;
        }
        if self.trial_offers[at] > 0 && self.gap[at] < messages_in(KERNEL_TRIAL_GAP.1, at) {
            // More offers are in flight than lie between two trials.
            self.widen_gap(at, KERNEL_TRIAL_GAP.1);
            self.until_trial[at] = self.gap[at];
            return CopyMethod::Packets;
        }
        // An offer that was never answered is forgotten.
        self.trial_offers[at] = 1;
        self.first_read &= !bit;
        CopyMethod::Kernel
    }

    /// Sets the method of a size class.
    fn set_method(&mut self, at: usize, method: CopyMethod) {
        let bit = 1 << at;
        let gap = match method {
            CopyMethod::Kernel => PACKET_TRIAL_GAP.0,
            CopyMethod::Packets => KERNEL_TRIAL_GAP.0,
        };
        self.kernel = if method == CopyMethod::Kernel { self.kernel | bit } else { self.kernel & !bit };
        self.gap[at] = messages_in(gap, at);
        self.until_trial[at] = self.gap[at];
        self.packet_trial[at] = 0;
    }

    fn widen_gap(&mut self, at: usize, most: usize) {
        self.gap[at] = self.gap[at].saturating_mul(2).min(messages_in(most, at));
    }

    /// Records that the peer has read an offered message.
    pub fn on_read(&mut self, len: usize) {
        let at = size_class(len);
        let bit = 1 << at;
        if self.trial_offers[at] == 0 {
            return;
        }
        self.trial_offers[at] -= 1;
        if self.first_read & bit == 0 {
            // The first read may be only a measurement; more offers in a row confirm it.
            self.first_read |= bit;
            self.offers_left[at] = TRIAL_READS;
        } else if self.trial_offers[at] == 0 && self.offers_left[at] == 0 {
            self.first_read &= !bit;
            self.set_method(at, CopyMethod::Kernel);
        }
    }

    /// Records that the peer declined an offered message.
    pub fn on_declined(&mut self, len: usize) {
        let at = size_class(len);
        if self.kernel & 1 << at != 0 {
            self.set_method(at, CopyMethod::Packets);
        } else if self.trial_offers[at] > 0 {
            self.widen_gap(at, KERNEL_TRIAL_GAP.1);
            self.until_trial[at] = self.gap[at];
        }
        (self.trial_offers[at], self.offers_left[at]) = (0, 0);
        self.first_read &= !(1 << at);
    }

    /// Method in use for this length; `None` before the first message.
    pub fn current(&self, len: usize) -> Option<CopyMethod> {
        let bit = 1 << size_class(len);
        match (self.seen & bit, self.kernel & bit) {
            (0, _) => None,
            (_, 0) => Some(CopyMethod::Packets),
            _ => Some(CopyMethod::Kernel),
        }
    }
}

#[cfg(test)]
mod tests;
