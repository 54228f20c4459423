//! The kernel or packets, for a message out of a program's memory to another process of its host: by what both have taken
//! lately. How far two processors are from each other decides it, which differs between machines and changes while a program
//! runs. The receiver knows the times and is the [`ReceiverTuner`]; the sender keeps to what that has said in [`SenderTuner`], and tries
//! the other way now and then. Used by `lane` only. Pure: times are handed in, in any unit that is the same for both ways.

use std::fmt;

/// Lengths that are told apart: 16 KiB and more, 32 KiB and more, and so on.
pub const SIZE_CLASSES: usize = 8;
/// The binary logarithm of the first.
const FIRST_LOG2: u32 = 14;

/// Which class a length is of.
pub const fn size_class(len: usize) -> usize {
    let log = (len | 1).ilog2().saturating_sub(FIRST_LOG2) as usize;
    if log < SIZE_CLASSES { log } else { SIZE_CLASSES - 1 }
}

/// The shortest length of a class.
pub const fn size_class_min(class: usize) -> usize {
    1 << (FIRST_LOG2 as usize + class)
}

/// Who moves a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum CopyMethod {
    /// The receiver has the kernel read it.
    Kernel,
    /// Both ends' processors copy it.
    #[default]
    Packets,
}

/// By what it is decided (`UCX_KERNEL_COPY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum CopyPolicy {
    /// What was measured as messages went.
    #[default]
    Auto,
    /// What transports say of themselves, or calibration has measured.
    Estimated,
    /// The kernel wherever it can.
    Kernel,
    /// Packets.
    Packets,
    /// By turns, whatever it takes: for tests.
    Alternate,
}

impl CopyPolicy {
    const NAMES: [(&str, CopyPolicy); 5] = [
        ("auto", CopyPolicy::Auto),
        ("estimate", CopyPolicy::Estimated),
        ("kernel", CopyPolicy::Kernel),
        ("packets", CopyPolicy::Packets),
        ("turns", CopyPolicy::Alternate),
    ];

    /// Whether it may change its mind from one message to the next.
    pub const fn is_open(self) -> bool {
        matches!(self, CopyPolicy::Auto | CopyPolicy::Alternate)
    }
}

impl fmt::Display for CopyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = CopyPolicy::NAMES.iter().find(|(_, rule)| rule == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl ucs::config::ConfigValue for CopyPolicy {
    fn parse(text: &str) -> Option<CopyPolicy> {
        CopyPolicy::NAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, rule)| *rule)
    }

    fn expected() -> String {
        CopyPolicy::NAMES.map(|(name, _)| name).join(", ")
    }
}

/// Bytes of packets whose times are one figure: packets come by fits and starts.
const SAMPLE_BYTES: usize = 1 << 16;
/// Bytes of packets, none of them behind a read, after which their times are what they go on to be: the ring, of 1 MiB, has gone
/// round twice. Before, they may come late, as nobody had the ring in his cache, or soon, as their sender has written them long
/// before, and is ahead by a ring.
const SETTLED_BYTES: usize = 2 << 20;
/// Reads, in a row, after which the same is so of reads: the first ones find memory that nobody has touched, and fetch what later
/// ones find in this processor's cache, if the sender has not written it anew.
const SETTLED_READS: u8 = 3;
/// Offers in a row of a trial, and reads that are done for it without being compared with anything.
const TRIAL_READS: u8 = 6;
/// Messages that are declined before such a row is read all the same, so that the time of a read is not that of long ago: soon after
/// a change, and later.
const DECLINES_PER_TRIAL: (u8, u8) = (4, 32);
/// How much faster the other way has to be, at least and at most.
const MARGIN: (f32, f32) = (1.08, 1.3);
/// Messages between two changes of mind by [`CopyPolicy::Alternate`].
const ALTERNATE_RUN: u8 = 20;

/// The receiver's half, for one peer: what messages of it take, and who is to move the next one.
#[derive(Clone, Debug)]
pub struct ReceiverTuner {
    /// What packets take for each KiB; 0: not known.
    packets: f32,
    /// The run that has begun: its bytes and its time.
    sample: (usize, u64),
    /// Bytes of packets since the last read.
    settled: usize,
    /// Reads since the last packet.
    reads_in_row: u8,
    /// What the kernel takes to read a KiB, by class; 0: not known.
    kernel: [f32; SIZE_CLASSES],
    /// Reads to come that are not compared with anything.
    trial_reads: [u8; SIZE_CLASSES],
    /// Messages to decline until the next such row, and what that begins from, by class.
    declines_left: [(u8, u8); SIZE_CLASSES],
    /// Classes that go by packets.
    by_packets: u8,
    /// How much faster the other way has to be: more for a while after each change of mind.
    margin: f32,
    alternate: u8,
}

/// What a referee knows of a class of lengths: times for each KiB, in the unit they were handed in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CopyTimes {
    /// By packets.
    pub packets: Option<f32>,
    /// By the kernel.
    pub kernel: Option<f32>,
    /// Which is taken.
    pub by: CopyMethod,
}

impl Default for ReceiverTuner {
    fn default() -> Self {
        ReceiverTuner {
            packets: 0.0,
            sample: (0, 0),
            settled: 0,
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

/// A time for each KiB.
fn per_kib(time: u64, len: usize) -> f32 {
    time as f32 * 1024.0 / len.max(1) as f32
}

impl ReceiverTuner {
    /// A long packet took so long to take in: the wait for it counts, as far as it was the sender's copy that was waited for.
    pub fn record_packet(&mut self, len: usize, time: u64) {
        self.reads_in_row = 0;
        self.settled = self.settled.saturating_add(len);
        let (bytes, sum) = (self.sample.0.saturating_add(len), self.sample.1.saturating_add(time));
        self.sample = (bytes, sum);
        if bytes < SAMPLE_BYTES {
            return;
        }
        self.sample = (0, 0);
        let took = per_kib(sum, bytes);
        // Where the two ways go by turns nothing ever settles, and what is known must not stay for ever.
        let weight = if self.settled > SETTLED_BYTES { 0.5 } else { 1.0 / 512.0 };
        self.packets = if self.packets > 0.0 { self.packets + (took - self.packets) * weight } else { took };
    }

    /// The kernel took so long to read a message. One that is shorter than those of the first class, or a piece of one, says
    /// nothing of them.
    pub fn record_read(&mut self, len: usize, time: u64) {
        let at = size_class(len);
        if len < size_class_min(at) {
            return;
        }
        (self.sample, self.settled) = ((0, 0), 0);
        self.reads_in_row = self.reads_in_row.saturating_add(1);
        let (took, before) = (per_kib(time, len), self.kernel[at]);
        // A time that is too long is chance's, which does not make it shorter.
        let weight = if took < before { 0.75 } else { 0.125 };
        let weight = if took < before || self.reads_in_row > SETTLED_READS { weight } else { 1.0 / 128.0 };
        self.kernel[at] =
            if before > 0.0 { before + (took.min(2.0 * before) - before) * weight } else { took };
    }

    /// Who is to move a message of so many bytes that its sender has offered.
    pub fn choose(&mut self, rule: CopyPolicy, len: usize) -> CopyMethod {
        let at = size_class(len);
        match rule {
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
        let (until_trial, begin) = &mut self.declines_left[at];
        if *until_trial == 0 {
            *begin = (2 * *begin).min(DECLINES_PER_TRIAL.1);
            *until_trial = *begin;
            self.trial_reads[at] = TRIAL_READS - 1;
            return CopyMethod::Kernel;
        }
        *until_trial -= 1;
        CopyMethod::Packets
    }

    /// What is known of lengths like this one.
    pub fn times(&self, len: usize) -> CopyTimes {
        let at = size_class(len);
        CopyTimes {
            packets: (self.packets > 0.0).then_some(self.packets),
            kernel: (self.kernel[at] > 0.0).then_some(self.kernel[at]),
            by: if self.by_packets & 1 << at == 0 { CopyMethod::Kernel } else { CopyMethod::Packets },
        }
    }
}

/// Bytes that go in packets in a row, for a figure, while messages are read.
const PACKET_TRIAL_BYTES: usize = SETTLED_BYTES + 8 * SAMPLE_BYTES;
/// Bytes between two such looks, soon after a change and later.
const PACKET_TRIAL_GAP: (usize, usize) = (6 << 20, 160 << 20);
/// Bytes between two trials of the kernel, likewise.
const KERNEL_TRIAL_GAP: (usize, usize) = (1 << 20, 16 << 20);

/// How many messages of a class so many bytes are.
fn messages(bytes: usize, class: usize) -> u16 {
    bytes.div_ceil(size_class_min(class)).clamp(2, u16::MAX as usize) as u16
}

/// The sender's half, for one peer: whether to offer the next message to be read. Counts messages and asks no clock.
#[derive(Clone, Debug, Default)]
pub struct SenderTuner {
    /// Messages of each class until the other way is looked at again.
    until_trial: [u16; SIZE_CLASSES],
    /// What that begins from.
    gap: [u16; SIZE_CLASSES],
    /// Messages of a look that are to go in packets.
    packet_trial: [u16; SIZE_CLASSES],
    /// Offers of a trial that are not answered.
    trial_offers: [u8; SIZE_CLASSES],
    /// Offers of a trial that are to be made at once.
    offers_left: [u8; SIZE_CLASSES],
    /// Classes of which there has been a message.
    seen: u8,
    /// Classes that are offered.
    kernel: u8,
    /// Classes of which the first offer of a trial has been read.
    first_read: u8,
}

impl SenderTuner {
    /// How the next message of so many bytes goes; `estimate`: how it would by what is known beforehand.
    pub fn next(&mut self, len: usize, estimate: CopyMethod) -> CopyMethod {
        let at = size_class(len);
        let bit = 1 << at;
        if self.seen & bit == 0 {
            self.seen |= bit;
            self.settle(at, estimate);
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
            // The receiver gets to know what packets take; if that is less, it declines what is offered next.
            self.lengthen(at, PACKET_TRIAL_GAP.1);
            self.packet_trial[at] = messages(PACKET_TRIAL_BYTES, at) - 1;
            return CopyMethod::Packets;
        }
        if self.trial_offers[at] > 0 && self.gap[at] < messages(KERNEL_TRIAL_GAP.1, at) {
            // More are under way than lie between two trials.
            self.lengthen(at, KERNEL_TRIAL_GAP.1);
            self.until_trial[at] = self.gap[at];
            return CopyMethod::Packets;
        }
        // One that was never answered is forgotten.
        self.trial_offers[at] = 1;
        self.first_read &= !bit;
        CopyMethod::Kernel
    }

    /// From now on this is the way.
    fn settle(&mut self, at: usize, by: CopyMethod) {
        let bit = 1 << at;
        let gap = match by {
            CopyMethod::Kernel => PACKET_TRIAL_GAP.0,
            CopyMethod::Packets => KERNEL_TRIAL_GAP.0,
        };
        self.kernel = if by == CopyMethod::Kernel { self.kernel | bit } else { self.kernel & !bit };
        self.gap[at] = messages(gap, at);
        self.until_trial[at] = self.gap[at];
        self.packet_trial[at] = 0;
    }

    fn lengthen(&mut self, at: usize, most: usize) {
        self.gap[at] = self.gap[at].saturating_mul(2).min(messages(most, at));
    }

    /// The peer has read a message.
    pub fn on_read(&mut self, len: usize) {
        let at = size_class(len);
        let bit = 1 << at;
        if self.trial_offers[at] == 0 {
            return;
        }
        self.trial_offers[at] -= 1;
        if self.first_read & bit == 0 {
            // Perhaps only to see what that takes: that it is the better way some more tell, in a row.
            self.first_read |= bit;
            self.offers_left[at] = TRIAL_READS;
        } else if self.trial_offers[at] == 0 && self.offers_left[at] == 0 {
            self.first_read &= !bit;
            self.settle(at, CopyMethod::Kernel);
        }
    }

    /// The peer would rather have a message in packets.
    pub fn on_declined(&mut self, len: usize) {
        let at = size_class(len);
        if self.kernel & 1 << at != 0 {
            self.settle(at, CopyMethod::Packets);
        } else if self.trial_offers[at] > 0 {
            self.lengthen(at, KERNEL_TRIAL_GAP.1);
            self.until_trial[at] = self.gap[at];
        }
        (self.trial_offers[at], self.offers_left[at]) = (0, 0);
        self.first_read &= !(1 << at);
    }

    /// How messages of so many bytes go at present; `None`: there has been none.
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
