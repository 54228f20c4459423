//! Datagrams out: a system call for each batch, a header for each run.

use super::name::Name;
use super::runs::first_run;
use super::{BATCH, SOL_UDP, Socket, UDP_SEGMENT};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use ucs::Errno;
use usnic::ChannelId;

/// Control message with the length of the datagrams of a run. Aligned as the kernel reads it.
#[repr(C)]
struct SegmentControl {
    header: libc::cmsghdr,
    segment: u16,
    padding: [u8; 6],
}

const _: () = assert!(
    size_of::<SegmentControl>() == {
        // SAFETY: an arithmetic function.
        (unsafe { libc::CMSG_SPACE(2) }) as usize
    }
);

/// Answer of the kernel to a batch.
enum Taken {
    /// It took so many headers.
    Headers(usize),
    /// It has no room.
    Full,
    /// It refuses the first header.
    Refused,
}

fn add(counter: &Cell<u64>, n: usize) {
    counter.set(counter.get() + n as u64);
}

impl Socket {
    /// Sends up to [`BATCH`] datagrams of a channel and flow. Returns how many the kernel took; one that it
    /// refuses for itself, and not for want of room, counts as taken: it is lost.
    pub fn send(&self, channel: ChannelId, flow: u8, batch: &[(SocketAddr, &[u8])]) -> usize {
        let batch = &batch[..batch.len().min(BATCH)];
        if batch.is_empty() {
            return 0;
        }
        #[cfg(test)]
        if self.full.get()[channel as usize] {
            return 0;
        }
        let joins = self.joins();
        let mut lens = [0; BATCH];
        let (mut at, mut runs) = (0, 0);
        while at < batch.len() {
            let len = if joins { first_run(&batch[at..]) } else { 1 };
            (lens[runs], at, runs) = (len, at + len, runs + 1);
        }
        add(&self.counts.sends, 1);
        match self.send_runs(self.leaving(channel, flow), batch, &lens[..runs]) {
            Taken::Headers(n) => {
                let datagrams = lens[..n].iter().sum();
                add(&self.counts.runs_sent, lens[..n].iter().filter(|len| **len > 1).count());
                add(&self.counts.datagrams_sent, datagrams);
                add(&self.counts.of_priority, if channel == ChannelId::Priority { datagrams } else { 0 });
                add(&self.counts.of_other_flows, if flow == 0 { 0 } else { datagrams });
                datagrams
            }
            Taken::Full => {
                add(&self.counts.full, 1);
                0
            }
            Taken::Refused if lens[0] > 1 => {
                // This path or device does not cut runs. The caller sends it again, one by one.
                self.stop_joining();
                0
            }
            Taken::Refused => 1,
        }
    }

    fn send_runs(&self, from: &UdpSocket, batch: &[(SocketAddr, &[u8])], lens: &[usize]) -> Taken {
        const CONTROL: SegmentControl = SegmentControl {
            header: libc::cmsghdr {
                cmsg_len: {
                    // SAFETY: an arithmetic function.
                    (unsafe { libc::CMSG_LEN(2) }) as _
                },
                cmsg_level: SOL_UDP,
                cmsg_type: UDP_SEGMENT,
            },
            segment: 0,
            padding: [0; 6],
        };
        let mut names = [const { MaybeUninit::<Name>::uninit() }; BATCH];
        let mut controls = [const { MaybeUninit::<SegmentControl>::uninit() }; BATCH];
        let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        for (iovec, (_, bytes)) in iovecs.iter_mut().zip(batch) {
            iovec.write(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        }
        let first_iovec = iovecs.as_mut_ptr();
        let mut at = 0;
        for (run, len) in lens.iter().enumerate() {
            let (to, bytes) = batch[at];
            let name: *mut Name = names[run].write(Name::new(to));
            // SAFETY: all fields are integers and pointers, for which zero is a value.
            let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            header.msg_hdr.msg_name = name.cast();
            header.msg_hdr.msg_namelen = Name::len(to);
            header.msg_hdr.msg_iov = first_iovec.wrapping_add(at).cast();
            header.msg_hdr.msg_iovlen = *len as _;
            if *len > 1 {
                let control = SegmentControl { segment: bytes.len() as u16, ..CONTROL };
                let control: *mut SegmentControl = controls[run].write(control);
                header.msg_hdr.msg_control = control.cast();
                header.msg_hdr.msg_controllen = size_of::<SegmentControl>() as _;
            }
            headers[run].write(header);
            at += len;
        }
        let (fd, list, count) = (from.as_raw_fd(), headers.as_mut_ptr().cast(), lens.len());
        // SAFETY: `count` headers are initialised; each names bytes that are borrowed during the call, which
        // the kernel only reads, and an address and a control message of ours.
        let n = unsafe { libc::sendmmsg(fd, list, count as libc::c_uint, libc::MSG_DONTWAIT) };
        match usize::try_from(n) {
            Ok(n) => Taken::Headers(n),
            Err(_) => match Errno::last_os().0 {
                libc::EAGAIN | libc::ENOBUFS | libc::EINTR => Taken::Full,
                _ => Taken::Refused,
            },
        }
    }
}
