//! Packets as text. Called by tools and tracing; a packet that does not parse is printed as far as possible,
//! with the reason.

use super::base::{Base, CtlFlags, PktType, ReqFlags};
use super::error::Section;
use super::handshake::{Features, Handshake, HandshakeFlags};
use super::iov::Iovs;
use super::opt::Opts;
use super::packet::Packet;
use super::parse::parse;
use super::reader::Reader;
use super::rta::{AtomicOp, Datatype};
use super::rtm::RtmBody;
use super::rtw::RtwBody;
use super::table::{Field, FieldFormat, PktInfo, info};
use bitflags::Flags;
use std::fmt::{self, Formatter, Write};

/// A packet to print: `{}` on one line, `{:#}` with a line for each field, its offset and its meaning.
#[derive(Clone, Copy, Debug)]
pub struct Print<'a>(pub &'a [u8]);

/// A field of a packet as text, for programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Field name; iovs have several items of one name.
    pub name: &'static str,
    /// Printed value.
    pub value: String,
}

/// Fields of a packet in printing order, `flags` first; the last is `rejected` if it does not parse.
pub fn items(packet: &[u8]) -> Vec<Item> {
    let mut list = Vec::new();
    // Nothing that is put into a list fails.
    let _ = print(packet, Target::List(&mut list));
    list
}

impl fmt::Display for Print<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(self.0, if f.alternate() { Target::Lines(f) } else { Target::Line(f) })
    }
}

fn print(packet: &[u8], target: Target<'_, '_>) -> fmt::Result {
    let mut printer = Printer { target };
    let Ok(base) = Reader::new(packet).take::<Base>(Section::Base) else {
        return printer.too_short(packet.len());
    };
    let info = info(PktType(base.ty));
    printer.head(info, base, packet.len())?;
    for field in info.all_fields() {
        if let Some(value) = field.get(packet) {
            printer.item(Some(field.offset), field.name, Value { value, field }, field.meaning)?;
        }
    }
    match parse(packet) {
        Ok(view) => printer.rest(&view),
        Err(reject) => printer.item(None, "rejected", format_args!("\"{reject}\""), ""),
    }
}

/// Output of the printer.
enum Target<'f, 'b> {
    Line(&'f mut Formatter<'b>),
    Lines(&'f mut Formatter<'b>),
    List(&'f mut Vec<Item>),
}

struct Printer<'f, 'b> {
    target: Target<'f, 'b>,
}

impl Printer<'_, '_> {
    /// A packet without even a base header.
    fn too_short(&mut self, len: usize) -> fmt::Result {
        match &mut self.target {
            Target::Line(f) | Target::Lines(f) => write!(f, "{len} bytes, too few for a packet"),
            Target::List(_) => self.item(None, "rejected", "too few bytes for a packet", ""),
        }
    }

    fn head(&mut self, info: &PktInfo, base: Base, len: usize) -> fmt::Result {
        let flags = FlagNames { info, bits: base.flags.get() };
        match &mut self.target {
            Target::Line(f) => write!(f, "{} flags={flags}", info.ty),
            Target::Lines(f) => {
                write!(f, "{}, {len} bytes", info.ty)?;
                self.item(Some(0), "type", base.ty, "")?;
                self.item(Some(1), "version", base.version, "")?;
                self.item(Some(2), "flags", flags, "")
            }
            Target::List(_) => self.item(Some(2), "flags", flags, ""),
        }
    }

    fn item(
        &mut self,
        at: Option<u16>,
        name: &'static str,
        value: impl fmt::Display,
        meaning: &str,
    ) -> fmt::Result {
        let f = match (&mut self.target, at) {
            (Target::Line(f), _) => return write!(f, " {name}={value}"),
            (Target::List(list), _) => {
                list.push(Item { name, value: value.to_string() });
                return Ok(());
            }
            (Target::Lines(f), Some(at)) => {
                write!(f, "\n  @{at:<3} {name:<16}")?;
                f
            }
            (Target::Lines(f), None) => {
                write!(f, "\n       {name:<16}")?;
                f
            }
        };
        match meaning {
            "" => write!(f, "{value}"),
            meaning => write!(f, "{:<20}{meaning}", format_args!("{value}").to_string()),
        }
    }

    /// All that is behind the fixed header.
    fn rest(&mut self, packet: &Packet<'_>) -> fmt::Result {
        match packet {
            Packet::Rtw(rtw) => self.iovs("rma_iov", &rtw.rma_iov)?,
            Packet::Rtr(rtr) => self.iovs("rma_iov", &rtr.rma_iov)?,
            Packet::Rta(rta, _) => self.iovs("rma_iov", &rta.rma_iov)?,
            Packet::CtsData(hdr, _) => self.option("connid", hdr.connid.map(Hex))?,
            Packet::Handshake(shake) => self.handshake(shake)?,
            _ => {}
        }
        if let Some(opts) = packet.opts() {
            self.opts(opts)?;
        }
        match packet {
            Packet::Rtm(rtm) => match &rtm.body {
                RtmBody::LongRead { read_iov, .. } | RtmBody::RuntRead { read_iov, .. } => {
                    self.iovs("read_iov", read_iov)?;
                }
                RtmBody::Eager | RtmBody::Medium { .. } | RtmBody::LongCts { .. } => {}
            },
            Packet::Rtw(rtw) => {
                if let RtwBody::LongRead { read_iov, .. } = &rtw.body {
                    self.iovs("read_iov", read_iov)?;
                }
            }
            _ => {}
        }
        match packet.payload().len() {
            0 => Ok(()),
            len => self.item(None, "payload", len, "bytes"),
        }
    }

    fn iovs(&mut self, name: &'static str, iovs: &Iovs) -> fmt::Result {
        for iov in iovs.as_slice() {
            self.item(None, name, format_args!("{:#x}+{}@{:#x}", iov.addr, iov.len, iov.key), "")?;
        }
        Ok(())
    }

    fn option(&mut self, name: &'static str, value: Option<impl fmt::Display>) -> fmt::Result {
        value.map_or(Ok(()), |value| self.item(None, name, value, ""))
    }

    fn opts(&mut self, opts: &Opts) -> fmt::Result {
        self.option("raw_addr", opts.raw_addr)?;
        self.option("cq_data", opts.cq_data.map(Hex))?;
        self.option("connid", opts.connid.map(Hex))
    }

    fn handshake(&mut self, shake: &Handshake) -> fmt::Result {
        self.item(None, "features", Names(shake.features()), "")?;
        for word in shake.extra.iter().take(usize::from(shake.nwords)).skip(1) {
            self.item(None, "extra", Hex(*word), "")?;
        }
        self.option("connid", shake.connid.map(Hex))?;
        self.option("host_id", shake.host_id.map(Hex))?;
        self.option("device_version", shake.device_version.map(Hex))?;
        self.option("user_recv_qpn", shake.user_recv_qp.map(|qp| qp.qpn))?;
        self.option("user_recv_qkey", shake.user_recv_qp.map(|qp| Hex(qp.qkey)))?;
        self.option("hmem_p2p", shake.hmem_p2p)
    }
}

struct Hex<T>(T);

impl<T: fmt::LowerHex> fmt::Display for Hex<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

struct Value {
    value: u64,
    field: Field,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let small = self.value as u32;
        match self.field.format {
            FieldFormat::Dec => write!(f, "{}", self.value),
            FieldFormat::Hex | FieldFormat::Pad => write!(f, "{:#x}", self.value),
            FieldFormat::Op => match AtomicOp::try_from(small) {
                Ok(op) => write!(f, "{op:?}"),
                Err(_) => write!(f, "{small}"),
            },
            FieldFormat::Datatype => match Datatype::try_from(small) {
                Ok(datatype) => write!(f, "{datatype:?}"),
                Err(_) => write!(f, "{small}"),
            },
        }
    }
}

/// Names of the bits set, unknown ones in hex, `0` for none.
struct Names<B>(B);

impl<B: Flags<Bits: fmt::LowerHex + Default + PartialEq>> fmt::Display for Names<B> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut names = self.0.iter_names();
        let mut any = false;
        for (name, _) in names.by_ref() {
            if any {
                f.write_char('|')?;
            }
            f.write_str(name)?;
            any = true;
        }
        let rest = names.remaining().bits();
        match (any, rest == B::Bits::default()) {
            (true, true) => Ok(()),
            (false, true) => f.write_char('0'),
            (true, false) => write!(f, "|{rest:#x}"),
            (false, false) => write!(f, "{rest:#x}"),
        }
    }
}

/// Flags mean what the type says they mean.
struct FlagNames<'a> {
    info: &'a PktInfo,
    bits: u16,
}

impl fmt::Display for FlagNames<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.info.ty {
            PktType::HANDSHAKE => Names(HandshakeFlags::from_bits_retain(self.bits)).fmt(f),
            _ if self.info.family.is_req() => Names(ReqFlags::from_bits_retain(self.bits)).fmt(f),
            _ => Names(CtlFlags::from_bits_retain(self.bits)).fmt(f),
        }
    }
}

/// The features of a peer, by name.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Names(*self).fmt(f)
    }
}
