//! The settings of one test. Made from the command line or a batch line, sent to the other side, and checked
//! there again.

use serde::{Deserialize, Serialize};

mod choices;

use crate::fail::Failure;
use crate::payload::{MAX_TRACKED, SEQ_LEN};
pub use choices::{Layout, Level, Pattern, Receive, Waiting};

/// Longest message, bytes; a larger size is a typing error or a hostile peer.
const MAX_MESSAGE: usize = 1 << 32;
const MAX_PIECES: usize = 64;
/// Most names of a test that a client may send, and bytes of all its text.
const MAX_NAMES: usize = 64;
const MAX_TEXT: usize = 4096;
const MAX_RMA_PIECES: usize = 4;
const MAX_THREADS: u32 = 64;
/// Hours of the fastest test; leaves bits for a rank in message numbers.
const MAX_ITERS: u64 = 1 << 40;
const MAX_WINDOW: u32 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// One transport on one device.
    Uct,
    /// Protocols of ucp, over the transports of `UCX_TLS`.
    Ucp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Each message waits for the answer to the previous one; half a round trip is reported.
    PingPong,
    /// One direction, as fast as the window allows; the time per message is reported.
    Stream,
}

macro_rules! tests {
    ($($(#[$meta:meta])* $Test:ident, $name:literal, $layer:ident, $flow:ident, $window:literal, $lat:literal, $about:literal;)+) => {
        /// A test, by its name in `ucx_perftest`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Test { $(#[doc = $about] $Test),+ }

        impl Test {
            pub const ALL: &[Test] = &[$(Test::$Test),+];

            pub fn name(self) -> &'static str {
                match self { $(Test::$Test => $name),+ }
            }

            pub fn about(self) -> &'static str {
                match self { $(Test::$Test => $about),+ }
            }

            pub fn layer(self) -> Layer {
                match self { $(Test::$Test => Layer::$layer),+ }
            }

            pub fn flow(self) -> Flow {
                match self { $(Test::$Test => Flow::$flow),+ }
            }

            /// Default of `-O`.
            pub fn window(self) -> u32 {
                match self { $(Test::$Test => $window),+ }
            }

            /// Title of the time columns: `latency` or `overhead`.
            pub fn times(self) -> &'static str {
                match self { $(Test::$Test => $lat),+ }
            }
        }
    };
}

tests! {
    AmLat, "am_lat", Uct, PingPong, 1, "latency", "active message latency";
    PutLat, "put_lat", Uct, PingPong, 1, "latency", "put latency";
    AddLat, "add_lat", Uct, PingPong, 1, "latency", "atomic add latency";
    Get, "get", Uct, Stream, 1, "latency", "get latency / bandwidth / message rate";
    GetBw, "get_bw", Uct, Stream, 32, "overhead", "get bandwidth / message rate";
    Fadd, "fadd", Uct, Stream, 1, "latency", "atomic fetch-and-add latency / rate";
    Swap, "swap", Uct, Stream, 1, "latency", "atomic swap latency / rate";
    Cswap, "cswap", Uct, Stream, 1, "latency", "atomic compare-and-swap latency / rate";
    AmBw, "am_bw", Uct, Stream, 1, "overhead", "active message bandwidth / message rate";
    AmMr, "am_mr", Uct, Stream, 1, "overhead", "active message rate";
    PutBw, "put_bw", Uct, Stream, 32, "overhead", "put bandwidth / message rate";
    AddMr, "add_mr", Uct, Stream, 1, "overhead", "atomic add message rate";
    TagLat, "tag_lat", Ucp, PingPong, 1, "latency", "tag match latency";
    TagBw, "tag_bw", Ucp, Stream, 32, "overhead", "tag match bandwidth";
    TagSyncLat, "tag_sync_lat", Ucp, PingPong, 1, "latency", "tag sync match latency";
    TagSyncBw, "tag_sync_bw", Ucp, Stream, 32, "overhead", "tag sync match bandwidth";
    StreamLat, "stream_lat", Ucp, PingPong, 1, "latency", "stream latency";
    StreamBw, "stream_bw", Ucp, Stream, 1, "overhead", "stream bandwidth";
    UcpAmLat, "ucp_am_lat", Ucp, PingPong, 1, "latency", "am latency";
    UcpAmBw, "ucp_am_bw", Ucp, Stream, 32, "overhead", "am bandwidth / message rate";
    UcpPutLat, "ucp_put_lat", Ucp, PingPong, 1, "latency", "put latency";
    UcpPutBw, "ucp_put_bw", Ucp, Stream, 32, "overhead", "put bandwidth";
    UcpGet, "ucp_get", Ucp, Stream, 1, "latency", "get latency / bandwidth / message rate";
    UcpAdd, "ucp_add", Ucp, Stream, 1, "overhead", "atomic add bandwidth / message rate";
    UcpFadd, "ucp_fadd", Ucp, Stream, 1, "latency", "atomic fetch-and-add latency / bandwidth / rate";
    UcpSwap, "ucp_swap", Ucp, Stream, 1, "latency", "atomic swap latency / bandwidth / rate";
    UcpCswap, "ucp_cswap", Ucp, Stream, 1, "latency", "atomic compare-and-swap latency / bandwidth / rate";
}

impl Test {
    pub fn parse(name: &str) -> Result<Test, String> {
        if let Some(test) = Test::ALL.iter().find(|t| t.name() == name) {
            return Ok(*test);
        }
        let known: Vec<&str> = Test::ALL.iter().map(|t| t.name()).collect();
        Err(format!("test '{name}' is unknown (there are: {})", known.join(", ")))
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Test::AddLat | Test::Fadd | Test::Swap | Test::Cswap | Test::AddMr)
            || matches!(self, Test::UcpAdd | Test::UcpFadd | Test::UcpSwap | Test::UcpCswap)
    }

    pub fn is_am(self) -> bool {
        use Test::*;
        matches!(self, AmLat | AmBw | AmMr | UcpAmLat | UcpAmBw)
    }

    pub fn is_am_or_stream(self) -> bool {
        matches!(self, Test::StreamLat | Test::StreamBw | Test::UcpAmLat | Test::UcpAmBw)
    }

    pub fn is_ucp_rma(self) -> bool {
        use Test::*;
        matches!(self, UcpPutLat | UcpPutBw | UcpGet | UcpAdd | UcpFadd | UcpSwap | UcpCswap)
    }
}

/// Whether the passive side of one-sided tests makes progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passive {
    Progress,
    /// No (`-o`).
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TagMatch {
    Exact,
    /// Wildcard (`-C`).
    Any,
}

/// Whether receives are posted before their message can arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arrival {
    Expected,
    /// No: each message is probed for first (`-U`).
    Unexpected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Validate {
    No,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    Now,
    /// On first use (`-B`).
    Lazy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// Of the program (`--own`); the default for the local side of one-sided tests.
    Plain,
    /// Allocated by a transport, if one can.
    Allocated,
    /// Allocated by a transport, or an error (`-z`).
    Registered,
}

/// Memory that one-sided operations read and write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Target {
    Allocated,
    /// Of the target program (`--own`).
    Own,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Banner {
    Shown,
    /// Not printed (`-q` in a batch line).
    Hidden,
}

/// Whether the distribution of times is counted (`--hist`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Histogram {
    No,
    Yes,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub names: Vec<String>,
    /// Whether the size is one of a range.
    #[serde(rename = "swept")]
    pub in_size_range: bool,
    pub test: Test,
    /// Transport; for high-level tests a list as in `UCX_TLS`.
    pub tl: Option<String>,
    pub dev: Option<String>,
    /// Data path; `None`: the first that fits. High level: layout of the sender.
    pub layout: Option<Layout>,
    /// Layout of the receiver (high level).
    pub recv_layout: Option<Layout>,
    /// Lengths of the pieces of a message, bytes.
    pub pieces: Vec<usize>,
    pub iters: u64,
    pub warmup: u64,
    pub window: u32,
    /// Active messages outstanding without an acknowledgement.
    pub credits: u32,
    pub validate: Validate,
    pub passive: Passive,
    pub tag_match: TagMatch,
    pub arrival: Arrival,
    /// Endpoints have an error handler for failed peers (`-e`).
    pub peer_errors: bool,
    pub pattern: Pattern,
    /// Header of active messages, bytes.
    pub am_header: usize,
    pub waiting: Waiting,
    /// Bytes between the starts of pieces; 0: side by side.
    pub stride: usize,
    pub pages: Pages,
    pub memory: Memory,
    /// Also where low-level one-sided tests send from.
    pub target: Target,
    /// Handlers of active messages copy the data (`-y`).
    pub copies: bool,
    pub receive: Receive,
    pub level: Level,
    pub threads: u32,
    pub rank: f64,
    pub banner: Banner,
    pub hist: Histogram,
}

impl Spec {
    /// Label in reports with several tests: names, and the size if it is one of a range.
    pub fn label(&self) -> Option<String> {
        label(&self.names, self.in_size_range.then(|| self.size()))
    }

    pub fn size(&self) -> usize {
        self.pieces.iter().sum()
    }

    /// Offset and length of each piece of a message in its memory.
    #[inline]
    pub fn piece_ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut next = 0;
        self.pieces.iter().map(move |len| {
            let at = next;
            next += if self.stride > 0 { self.stride } else { *len };
            (at, *len)
        })
    }

    /// Bytes of memory that a message spans.
    #[inline]
    pub fn span(&self) -> usize {
        if self.stride > 0 { self.stride * self.pieces.len() } else { self.size() }
    }

    /// Checks all settings; those of a peer are not trusted either.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::Usage(text));
        let test = self.test.name();
        if self.pieces.is_empty() || self.pieces.len() > MAX_PIECES {
            return wrong(format!("-s: 1 to {MAX_PIECES} pieces make a message, not {}", self.pieces.len()));
        }
        let size = self.pieces.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        let Some(size) = size.filter(|n| *n <= MAX_MESSAGE) else {
            return wrong(format!("-s: a message has at most {MAX_MESSAGE} bytes"));
        };
        if self.test.is_atomic() && !matches!(size, 1 | 2 | 4 | 8 | 16) {
            return wrong(format!("-s {size}: {test} works on words of 1, 2, 4, 8 or 16 bytes"));
        }
        let to_memory = matches!(self.test, Test::PutLat | Test::PutBw | Test::Get | Test::GetBw);
        if size == 0 && (to_memory || self.test.is_ucp_rma()) {
            return wrong(format!("-s 0: {test} needs at least 1 byte"));
        }
        if size == 0 && matches!(self.test, Test::StreamLat | Test::StreamBw) {
            return wrong(format!("-s 0: {test} needs at least 1 byte"));
        }
        if self.am_header > 4096 {
            return wrong(format!("-H {}: a header has at most 4096 bytes", self.am_header));
        }
        match (self.test.layer(), self.test.is_am()) {
            (Layer::Ucp, true) => {}
            // The header holds the message number.
            (Layer::Uct, _) if self.am_header == SEQ_LEN => {}
            (Layer::Uct, true) if self.layout != Some(Layout::Zcopy) => {
                return wrong(format!(
                    "-H {}: low-level messages have a header of {SEQ_LEN} bytes, or with -D zcopy another",
                    self.am_header
                ));
            }
            (Layer::Uct, true) if self.am_header > self.pieces[0] => {
                return wrong(format!(
                    "-H {}: a header is the first bytes of the first piece",
                    self.am_header
                ));
            }
            (_, false) if self.am_header > 0 => {
                return wrong(format!("-H is for tests of active messages, not for {test}"));
            }
            _ => {}
        }
        if self.waiting == Waiting::Sleep && self.test.layer() == Layer::Uct {
            return wrong(format!("-E sleep is for high-level tests, not for {test}"));
        }
        if self.threads == 0 || self.threads > MAX_THREADS {
            return wrong(format!("-T: {} is not in 1..={MAX_THREADS}", self.threads));
        }
        if !(0.0..=100.0).contains(&self.rank) {
            return wrong(format!("-R: {} is not a percentile (0 to 100)", self.rank));
        }
        if self.iters == 0 {
            return wrong("-n: at least 1 iteration".into());
        }
        if let Some(count) = [self.iters, self.warmup].into_iter().find(|n| *n > MAX_ITERS) {
            return wrong(format!("-n, -w: at most {MAX_ITERS} iterations, not {count}"));
        }
        if self.validate == Validate::Yes && self.test.is_am() && self.iters.max(self.warmup) > MAX_TRACKED {
            return wrong(format!("-V: at most {MAX_TRACKED} messages of {test} are checked"));
        }
        if self.window == 0 || self.window > MAX_WINDOW {
            return wrong(format!("-O {}: from 1 to {MAX_WINDOW} outstanding operations", self.window));
        }
        if self.credits < 2 || self.credits > 1 << 24 {
            return wrong(format!("-W {}: from 2 to {} messages", self.credits, 1 << 24));
        }
        match (self.test.layer(), self.layout) {
            (Layer::Uct, Some(l @ (Layout::Contig | Layout::Iov))) => {
                return wrong(format!(
                    "-D {l} is for high-level tests, {test} has: short, shortiov, bcopy, zcopy"
                ));
            }
            (Layer::Ucp, Some(l)) if !matches!(l, Layout::Contig | Layout::Iov) => {
                return wrong(format!("-D {l} is for low-level tests, {test} has: contig, iov"));
            }
            _ => {}
        }
        if let Some(l) = self.recv_layout {
            let (low, one_sided) = (self.test.layer() == Layer::Uct, self.test.is_ucp_rma());
            if low || one_sided && Some(l) != self.layout {
                return wrong(format!("-D: {test} has one layout"));
            }
            if !matches!(l, Layout::Contig | Layout::Iov) {
                return wrong(format!("-D {l} is for low-level tests, {test} receives: contig, iov"));
            }
        }
        if self.receive == Receive::Data && !matches!(self.test, Test::StreamLat | Test::StreamBw) {
            return wrong(format!("-r is for stream_lat and stream_bw, not for {test}"));
        }
        if self.copies && !matches!(self.test, Test::UcpAmLat | Test::UcpAmBw) {
            return wrong(format!("-y is for ucp_am_lat and ucp_am_bw, not for {test}"));
        }
        let in_call = |l| l == Layout::Short || l == Layout::Contig;
        if self.test.is_atomic() && self.layout.is_some_and(|l| !in_call(l)) {
            return wrong(format!("-D: {test} passes its word in the call (short)"));
        }
        if self.layout == Some(Layout::ShortIov) && !self.test.is_am() {
            return wrong(format!("-D shortiov is for active messages, not for {test}"));
        }
        let iov = self.layout == Some(Layout::Iov) || self.recv_layout == Some(Layout::Iov);
        if self.pieces.len() > 1 && !iov && !matches!(self.layout, Some(Layout::ShortIov | Layout::Zcopy)) {
            return wrong(
                "-s with several pieces needs -D shortiov, -D zcopy or, for high-level tests, -D iov".into(),
            );
        }
        if iov && self.test.is_ucp_rma() {
            if self.pieces.len() > MAX_RMA_PIECES {
                return wrong(format!("-s: {test} takes up to {MAX_RMA_PIECES} pieces"));
            }
            if self.stride > 0 || self.pieces.contains(&0) {
                return wrong(format!("-D iov: pieces of {test} lie side by side and are not empty"));
            }
        }
        if self.stride > 0 {
            let longest = self.pieces.iter().copied().max().unwrap_or(0);
            if self.layout != Some(Layout::Zcopy) && !iov {
                return wrong(
                    "-i is for -D zcopy and -D iov: other data are handed over side by side".into(),
                );
            }
            if self.stride < longest {
                return wrong(format!("-i {}: pieces of {longest} bytes would overlap", self.stride));
            }
            if self.stride.checked_mul(self.pieces.len()).is_none_or(|all| all > MAX_MESSAGE) {
                return wrong(format!("-i {}: pieces lie within {MAX_MESSAGE} bytes", self.stride));
            }
        }
        let low = self.test.layer() == Layer::Uct;
        if self.pages == Pages::Lazy && !low && !(self.test.is_ucp_rma() && self.target == Target::Own) {
            let what = "low-level tests and, with --own, for one-sided ones: what ucp allocates has its pages at once";
            return wrong(format!("-B is for {what}, so not for {test}"));
        }
        if self.memory == Memory::Registered && (low || self.pattern != Pattern::Pairs) {
            return wrong(format!("-z is for high-level tests in pairs, not for {test}"));
        }
        if self.target == Target::Own && self.pattern != Pattern::Pairs {
            return wrong(format!("--own is for tests in pairs, not for --pattern {}", self.pattern));
        }
        if self.pattern != Pattern::Pairs {
            self.check_pattern()?;
        }
        if self.test.layer() == Layer::Uct && self.tl.is_none() {
            return wrong(format!("{test} needs -x (see `ucx-info -d` for transports and devices)"));
        }
        Ok(())
    }

    /// Checks what a client may ask of a server that has `available` bytes of memory.
    pub fn check_asked_of_server(&self, available: usize) -> Result<(), Failure> {
        let texts = self.names.iter().chain(&self.tl).chain(&self.dev);
        if self.names.len() > MAX_NAMES || texts.map(String::len).sum::<usize>() > MAX_TEXT {
            return Err(Failure::Usage(format!("names of a test have at most {MAX_TEXT} bytes together")));
        }
        let each_apart = self.validate == Validate::Yes || self.test.layer() == Layer::Uct;
        let messages = if each_apart { self.window as usize } else { 1 };
        let wanted = self.span().saturating_mul(messages).saturating_mul(self.threads as usize);
        if wanted > available {
            return Err(Failure::Unsupported(format!(
                "{}: the server has {available} bytes of memory, and -s, -O and -T ask for {wanted}",
                self.test.name()
            )));
        }
        Ok(())
    }

    fn check_pattern(&self) -> Result<(), Failure> {
        const DONE: [Test; 19] = [
            Test::AmBw,
            Test::AmMr,
            Test::PutBw,
            Test::Get,
            Test::GetBw,
            Test::AddMr,
            Test::Fadd,
            Test::Swap,
            Test::Cswap,
            Test::TagBw,
            Test::TagSyncBw,
            Test::StreamBw,
            Test::UcpAmBw,
            Test::UcpPutBw,
            Test::UcpGet,
            Test::UcpAdd,
            Test::UcpFadd,
            Test::UcpSwap,
            Test::UcpCswap,
        ];
        let (test, pattern) = (self.test.name(), self.pattern);
        if !DONE.contains(&self.test) {
            let can: Vec<&str> = DONE.iter().map(|t| t.name()).collect();
            return Err(Failure::Usage(format!(
                "--pattern {pattern} is not for {test} (it is for: {})",
                can.join(", ")
            )));
        }
        if matches!(self.test, Test::AmBw | Test::AmMr) && self.size() < 8 {
            return Err(Failure::Usage(format!(
                "-s {}: {test} with --pattern {pattern} needs 8 bytes to say who sends",
                self.size()
            )));
        }
        let none = [
            (self.arrival == Arrival::Unexpected, "-U"),
            (self.passive == Passive::Idle, "-o"),
            (self.stride > 0, "-i"),
        ];
        if let Some((_, letter)) = none.iter().find(|(asked, _)| *asked) {
            return Err(Failure::Usage(format!(
                "{letter} is for tests in pairs, not for --pattern {pattern}"
            )));
        }
        let mut layouts = [self.layout, self.recv_layout].into_iter().flatten();
        if layouts.any(|l| matches!(l, Layout::ShortIov | Layout::Iov)) || self.pieces.len() > 1 {
            return Err(Failure::Usage(format!("--pattern {pattern} has messages of one piece")));
        }
        Ok(())
    }
}

/// Joins the names of a test and its size, if that is one of a range.
pub fn label(names: &[String], size: Option<usize>) -> Option<String> {
    let all: Vec<String> = names.iter().cloned().chain(size.map(|n| n.to_string())).collect();
    (!all.is_empty()).then(|| all.join("/"))
}

#[cfg(test)]
mod tests;
