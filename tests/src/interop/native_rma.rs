//! One-sided operations of the native end: exported memory, writes, reads and atomics. Used by `native`.
//! Leaks buffers: the process ends with its script.

use ucp::{
    Access, AtomicIovParams, AtomicOp, AtomicParams, Datatype, Ep, Error, Iov, Mem, OpStatus, RemoteIov,
    RequestId, Rkey, RmaParams, Worker,
};

use super::control::{Line, bytes, sum, values};

pub const GUARD_BYTE: u8 = 0xa5;
const GUARD: usize = 64;

/// Memory that the other end may access, by name.
#[derive(Default)]
pub struct ExportedMemory(Vec<(String, Mem)>);

impl ExportedMemory {
    /// `mem ID LEN seed= [type=] [rdma]`: answers address and key, the device's for `rdma`.
    pub fn add(&mut self, worker: &Worker, line: &Line) -> Result<String, String> {
        let (name, len) = (line.word(1).ok_or("no id")?, line.number_at(2).ok_or("no length")? as usize);
        let mem = worker.mem_alloc(len, Access::all()).map_err(|e| e.to_string())?;
        mem.write(0, &contents(line, len, "seed"));
        let key = match line.has("rdma") {
            true => mem.device_key("efa").ok_or("the device does not know the memory")?,
            false => mem.key(),
        };
        let answer = format!("{:#x} {key:#x}", mem.addr());
        self.0.push((name.to_owned(), mem));
        Ok(answer)
    }

    /// `forget ID`: revokes the memory.
    pub fn forget(&mut self, line: &Line) -> Result<(), String> {
        let at = self.0.iter().position(|(name, _)| Some(&**name) == line.word(1)).ok_or("no such memory")?;
        drop(self.0.remove(at));
        Ok(())
    }

    /// `look ID`: answers the sum of its bytes.
    pub fn look(&self, line: &Line) -> Result<String, String> {
        let (_, mem) =
            self.0.iter().find(|(name, _)| Some(&**name) == line.word(1)).ok_or("no such memory")?;
        let mut all = vec![0; mem.len()];
        mem.read(0, &mut all);
        Ok(format!("{:016x} ok", sum(&all)))
    }
}

/// The bytes of a seed, or values of a type if the step names one.
pub fn contents(line: &Line, len: usize, seed: &str) -> Vec<u8> {
    let seed = line.number(seed).unwrap_or(0);
    line.number("type").map_or_else(|| bytes(len, seed), |ty| values(len, ty, seed))
}

/// The target of a step: address, key and, in a list, the length of each piece.
pub fn target(line: &Line) -> Result<Vec<(u64, Rkey, usize)>, String> {
    let rkey = |key| if line.has("rdma") { Rkey::from_device_key(key) } else { Rkey::from_key(key) };
    let Some(list) = line.value("far") else {
        let addr = line.number("addr").ok_or("no address")?;
        return Ok(vec![(addr, rkey(line.number("key").ok_or("no key")?), 0)]);
    };
    let piece = |text: &str| {
        let mut words = text.split(':').map(super::control::number);
        let (addr, len, key) = (words.next()??, words.next()??, words.next()??);
        Some((addr, rkey(key), len as usize))
    };
    list.split(',').map(piece).collect::<Option<_>>().ok_or_else(|| "no list of ADDR:LEN:KEY".into())
}

pub fn params(line: &Line) -> RmaParams<'static> {
    RmaParams { sync: sync(line), cq_data: line.number("data"), ..RmaParams::default() }
}

pub fn sync(line: &Line) -> ucp::select::DeliveryComplete {
    if line.has("dc") { ucp::select::DeliveryComplete::Yes } else { ucp::select::DeliveryComplete::No }
}

pub struct AtomicRun {
    verb: &'static str,
    result: *mut [u8],
    state: Result<RequestId, Result<(), Error>>,
}

impl AtomicRun {
    /// `atomic|fetch|compare ID LEN op= type= count= seed= [cseed=] addr= key= [dc] [near=]`, or `far=`.
    pub fn start(ep: &Ep, verb: &str, line: &Line) -> Result<AtomicRun, String> {
        let far = target(line)?;
        let len = line.number_at(2).ok_or("no length")? as usize;
        let code = |key: &str| line.number(key).map(|n| n as u32).ok_or_else(|| format!("no {key}"));
        let op = AtomicOp::try_from(code("op")?).map_err(|e| e.to_string())?;
        let ty = Datatype::try_from(code("type")?).map_err(|e| e.to_string())?;
        let count = code("count")? as usize;
        if count * ty.size() != len {
            return Err("the length is not that of the elements".into());
        }
        let keep = |bytes: Vec<u8>| Box::leak(bytes.into_boxed_slice());
        let operand = keep(contents(line, len, "seed"));
        let compare = keep(contents(line, len, "cseed"));
        let result: *mut [u8] = keep(vec![0; if verb == "atomic" { 0 } else { len }]);
        let verb = match verb {
            "fetch" => "fetch",
            "compare" => "compare",
            _ => "atomic",
        };
        let params = AtomicParams {
            op,
            ty,
            count,
            operand: operand.as_ptr(),
            compare: compare.as_ptr(),
            result: if verb == "atomic" { std::ptr::null_mut() } else { result.cast() },
            sync: sync(line),
            done: None,
            mem: None,
        };
        let state = match far.as_slice() {
            [] => return Err("no target".into()),
            [(remote, rkey, 0)] => {
                // SAFETY: the buffers are as long as the elements (checked) and live as long as the process;
                // nobody else has them until the operation's end.
                begun(unsafe { ep.atomic_raw(*remote, rkey, &params) })
            }
            _ => Self::start_list(ep, &far, &params, line.number("near").unwrap_or(1) as usize),
        };
        Ok(AtomicRun { verb, result, state })
    }

    /// Starts it on lists: `near` local pieces, of one element each but the last.
    fn start_list(
        ep: &Ep,
        far: &[(u64, Rkey, usize)],
        of: &AtomicParams<'_>,
        near: usize,
    ) -> Result<RequestId, Result<(), Error>> {
        let each = of.ty.size();
        let cut = |at: *mut u8| -> Vec<Iov> {
            let rest = of.count - near.clamp(1, of.count) + 1;
            let lens = std::iter::repeat_n(1, of.count - rest).chain([rest]);
            lens.enumerate().map(|(k, n)| Iov { addr: at.wrapping_add(k * each), len: n * each }).collect()
        };
        let compares = of.op as u32 >= AtomicOp::CompareSwap as u32;
        let (operand, result) = (cut(of.operand.cast_mut()), cut(of.result));
        let params = AtomicIovParams {
            op: of.op,
            ty: of.ty,
            operand: if of.op == AtomicOp::Read { &[] } else { &operand },
            compare: &if compares { cut(of.compare.cast_mut()) } else { Vec::new() },
            result: (!of.result.is_null()).then_some(&result),
            sync: of.sync,
            done: None,
            mem: None,
        };
        let remote: Vec<RemoteIov<'_>> =
            far.iter().map(|(addr, rkey, len)| RemoteIov { addr: *addr, len: *len, rkey }).collect();
        // SAFETY: as in `start`: the pieces are those buffers.
        begun(unsafe { ep.atomic_iov_raw(&remote, &params) })
    }

    /// The line that reports the end, if it has ended.
    pub fn ended(&self, id: &str, worker: &Worker) -> Option<String> {
        let result = match self.state {
            Ok(request) => worker.test(request)?.map(drop),
            Err(result) => result,
        };
        let verb = self.verb;
        if let Err(e) = result {
            return Some(format!("fail {id} {verb} error=other why=\"{e}\""));
        }
        if verb == "atomic" {
            return Some(format!("done {id} {verb}"));
        }
        // SAFETY: leaked, and the operation has ended.
        let old = unsafe { &*self.result };
        Some(format!("done {id} {verb} sum={:016x}", sum(old)))
    }
}

pub struct ListOp {
    verb: &'static str,
    /// All pieces, the first one last, with guard bytes behind each.
    all: *mut [u8],
    pieces: Vec<Iov>,
    state: Result<RequestId, Result<(), Error>>,
}

impl ListOp {
    /// `write|read ID LEN seed= parts= far= [data=] [dc] [rdma]`.
    pub fn start(ep: &Ep, verb: &str, line: &Line) -> Result<ListOp, String> {
        let far = target(line)?;
        let len = line.number_at(2).ok_or("no length")? as usize;
        let parts = line.number("parts").unwrap_or(1).clamp(1, 4) as usize;
        let mut room = vec![GUARD_BYTE; len + parts * GUARD];
        let out = bytes(len, line.number("seed").unwrap_or(0));
        let mut places = Vec::new();
        let (mut at, mut left) = (room.len(), len);
        for k in 0..parts {
            let some = if k + 1 == parts { left } else { len * (k + 1) / 10 };
            at -= some + GUARD;
            if verb == "write" {
                room[at..at + some].copy_from_slice(&out[len - left..len - left + some]);
            }
            places.push((at, some));
            left -= some;
        }
        let all: *mut [u8] = Box::leak(room.into_boxed_slice());
        let pieces: Vec<Iov> = places
            .iter()
            .map(|(at, len)| Iov { addr: all.cast::<u8>().wrapping_add(*at), len: *len })
            .collect();
        let remote: Vec<RemoteIov<'_>> =
            far.iter().map(|(addr, rkey, len)| RemoteIov { addr: *addr, len: *len, rkey }).collect();
        let (verb, state) = if verb == "write" {
            // SAFETY: the pieces are leaked; nobody has them until the operation's end.
            let started = unsafe { ep.put_iov_raw(&pieces, &remote, &params(line)) };
            ("write", begun(started))
        } else {
            // SAFETY: as above.
            let started = unsafe { ep.get_iov_raw(&pieces, &remote, &params(line)) };
            ("read", begun(started))
        };
        Ok(ListOp { verb, all, pieces, state })
    }

    /// The line that reports the end, if it has ended.
    pub fn ended(&self, id: &str, worker: &Worker) -> Option<String> {
        let result = match self.state {
            Ok(request) => worker.test(request)?.map(drop),
            Err(result) => result,
        };
        let verb = self.verb;
        if let Err(e) = result {
            return Some(format!("fail {id} {verb} error=other why=\"{e}\""));
        }
        if verb == "write" {
            return Some(format!("done {id} {verb}"));
        }
        // SAFETY: leaked, and the operation has ended.
        let all = unsafe { &*self.all };
        let base = self.all.cast::<u8>().addr();
        let (mut there, mut intact) = (Vec::new(), true);
        for Iov { addr, len } in &self.pieces {
            let (piece, behind) = all[addr.addr() - base..].split_at(*len);
            there.extend_from_slice(piece);
            intact &= behind[..GUARD].iter().all(|b| *b == GUARD_BYTE);
        }
        let guard = if intact { "ok" } else { "broken" };
        Some(format!("done {id} read sum={:016x} guard={guard}", sum(&there)))
    }
}

fn begun<T>(started: Result<OpStatus<T>, Error>) -> Result<RequestId, Result<(), Error>> {
    match started {
        Ok(OpStatus::InProgress(id)) => Ok(id),
        Ok(OpStatus::Done(_)) => Err(Ok(())),
        Err(e) => Err(Err(e)),
    }
}
