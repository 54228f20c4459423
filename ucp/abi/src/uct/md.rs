//! Memory domains and memory.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::ucs::Status;
use ::uct::any;
use ::uct::api::{Access, Advice, AllocMethod, AllocReq, Fill, Md as _, Memory as _};

use super::component::Component;
use super::config::Config;
use super::name_of;
use super::types::{
    self, AllocatedMemory, MdMemAttr, MemAllocParams, alloc_method, md_flag, mem_alloc_param, mem_flag,
};
use crate::arg::{AttrFields, AttrPtr, OutPtr, ParamsPtr, StrPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};
use crate::ucs::global::Global;

/// `uct_md_t`.
#[repr(C)]
pub(crate) struct Md {
    magic: Magic,
    pub(crate) component: &'static Component,
    /// Name of the device.
    pub(crate) dev: String,
    pub(crate) md: any::Md,
    /// Number of the domain in this process.
    pub(crate) id: usize,
}

impl Handle for Md {
    const MAGIC: u32 = 0x7563_746d;
    const NAME: &'static str = "memory domain";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl Md {
    /// Component and device, for messages.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.component.tl, self.dev)
    }
}

/// Domains that are open: keys are unpacked without naming one.
static OPEN: Mutex<Vec<OpenMd>> = Mutex::new(Vec::new());

struct OpenMd {
    id: usize,
    tl: &'static str,
    md: any::Md,
}

fn open_domains() -> std::sync::MutexGuard<'static, Vec<OpenMd>> {
    OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A domain of a transport that is open, with its number.
pub(crate) fn open_domain(tl: &str) -> Option<(usize, any::Md)> {
    open_domains().iter().find(|open| open.tl == tl).map(|open| (open.id, open.md.clone()))
}

/// `uct_mem_h`: registered memory.
#[repr(C)]
pub(crate) struct MemHandle {
    magic: Magic,
    pub(crate) mem: any::Mem,
}

impl Handle for MemHandle {
    const MAGIC: u32 = 0x7563_7468;
    const NAME: &'static str = "uct memory handle";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl MemHandle {
    fn new(mem: any::Mem) -> *mut MemHandle {
        into_handle(MemHandle { magic: Magic::of::<MemHandle>(), mem })
    }
}

/// `UCS_MEMORY_TYPE_HOST`.
const HOST: c_int = 0;

/// Access that flags ask for; local access, if they ask for none.
fn access_of(flags: c_uint) -> Access {
    let mut access = Access::empty();
    for (flag, right) in [
        (mem_flag::LOCAL_READ, Access::LOCAL_READ),
        (mem_flag::LOCAL_WRITE, Access::LOCAL_WRITE),
        (mem_flag::REMOTE_GET, Access::REMOTE_READ),
        (mem_flag::REMOTE_PUT, Access::REMOTE_WRITE),
        (mem_flag::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        access.set(right, flags & flag != 0);
    }
    if access.is_empty() { Access::LOCAL_READ | Access::LOCAL_WRITE } else { access }
}

/// Request for memory, as flags and an address say.
fn request<'a>(
    length: usize,
    name: &'a str,
    methods: Option<&'a [AllocMethod]>,
    flags: c_uint,
    at: *mut c_void,
) -> AllocReq<'a> {
    let mut request = AllocReq::new(length, name);
    request.methods = methods.unwrap_or(request.methods);
    request.access = access_of(flags);
    request.at = NonNull::new(at.cast::<u8>()).filter(|_| flags & mem_flag::FIXED != 0);
    if flags & mem_flag::NONBLOCK != 0 {
        request.fill = Fill::Lazy;
    }
    request
}

/// One of `uct_alloc_method_t` for a method of the crate.
fn c_method(method: Option<AllocMethod>) -> c_int {
    match method {
        Some(AllocMethod::Huge) => alloc_method::HUGE,
        Some(AllocMethod::Thp) => alloc_method::THP,
        Some(AllocMethod::Mmap) => alloc_method::MMAP,
        Some(AllocMethod::Heap) => alloc_method::HEAP,
        _ => alloc_method::MD,
    }
}

/// Allocates memory of a domain, and describes it as a C program sees it.
pub(crate) fn allocate(
    md: *mut Md,
    domain: &any::Md,
    methods: Option<&[AllocMethod]>,
    length: usize,
    flags: c_uint,
    at: *mut c_void,
    name: &str,
) -> Result<AllocatedMemory, Status> {
    let request = request(length, name, methods, flags, at);
    let mem = domain.alloc(&request).map_err(|error| {
        if flags & mem_flag::HIDE_ERRORS == 0 {
            tracing::error!("cannot allocate {length} bytes for {name}: {error}");
        }
        error.status()
    })?;
    let method = c_method(mem.method());
    let (address, length) = (mem.addr().cast(), mem.len());
    Ok(AllocatedMemory { address, length, method, mem_type: HOST, md, memh: MemHandle::new(mem) })
}

/// A name of the caller for memory.
pub(crate) fn memory_name(name: StrPtr) -> String {
    if name.get().is_none() { "anonymous".to_owned() } else { name.text() }
}

/// Memory of `uct_mem_alloc` without a domain, by address: it has no handle.
static WITHOUT_DOMAIN: Mutex<BTreeMap<usize, any::HostMem>> = Mutex::new(BTreeMap::new());

fn without_domain() -> std::sync::MutexGuard<'static, BTreeMap<usize, any::HostMem>> {
    WITHOUT_DOMAIN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Allocates memory that the program may register, as no domain does.
fn allocate_host(
    method: AllocMethod,
    length: usize,
    flags: c_uint,
    at: *mut c_void,
) -> Result<AllocatedMemory, Status> {
    let mem = any::HostMem::alloc(&request(length, "uct_mem_alloc", Some(&[method]), flags, at))
        .map_err(|error| error.status())?;
    let (address, length, method) = (mem.addr().cast::<c_void>(), mem.len(), c_method(Some(mem.method())));
    without_domain().insert(address.addr(), mem);
    let (md, memh) = (std::ptr::null_mut(), std::ptr::null_mut());
    Ok(AllocatedMemory { address, length, method, mem_type: HOST, md, memh })
}

/// Frees memory that [`allocate`] or [`allocate_host`] has made.
/// # Safety
/// `memory` is null, or what one of them has filled.
pub(crate) unsafe fn free(memory: *const AllocatedMemory) -> Result<(), Status> {
    // SAFETY: this function's contract.
    let memory = unsafe { memory.as_ref() }.ok_or_else(|| invalid("memory is null"))?;
    if memory.memh.is_null() {
        return without_domain()
            .remove(&memory.address.addr())
            .map(drop)
            .ok_or_else(|| invalid("no allocation begins at this address"));
    }
    from_handle(memory.memh).map(drop)
}

/// The method of the crate for one of `uct_alloc_method_t`.
fn method_of(method: c_int) -> Option<AllocMethod> {
    Some(match method {
        alloc_method::MD => AllocMethod::Md,
        alloc_method::THP => AllocMethod::Thp,
        alloc_method::HEAP => AllocMethod::Heap,
        alloc_method::MMAP => AllocMethod::Mmap,
        alloc_method::HUGE => AllocMethod::Huge,
        _ => return None,
    })
}

/// Attributes of a domain. The cost of registration is measured once for each device, if it is asked for.
pub(super) fn attr_of(md: &Md, with_cost: bool) -> types::MdAttr {
    let facts = md.md.attr();
    let mut flags = md_flag::ADVISE;
    for (flag, is_set) in [
        (md_flag::ALLOC | md_flag::FIXED, facts.can_alloc),
        (md_flag::REG, facts.can_register),
        (md_flag::NEED_MEMH, facts.needs_local_key),
        (md_flag::NEED_RKEY, facts.has_rkey),
        (md_flag::RKEY_PTR, matches!(md.component.tl, "self" | "posix")),
        (md_flag::INVALIDATE, facts.revokes_keys),
    ] {
        if is_set {
            flags |= flag;
        }
    }
    let host = 1 << HOST;
    types::MdAttr {
        max_alloc: if facts.can_alloc { u64::MAX } else { 0 },
        max_reg: if facts.can_register { usize::MAX } else { 0 },
        flags,
        reg_mem_types: if facts.can_register { host } else { 0 },
        detect_mem_types: 0,
        alloc_mem_types: if facts.can_alloc { host } else { 0 },
        access_mem_types: host,
        reg_cost: if with_cost && facts.can_register {
            reg_cost(md)
        } else {
            types::Linear { c: 0.0, m: 0.0 }
        },
        component_name: name_of(md.component.tl),
        rkey_packed_size: super::rkey::packed_size(facts.rkey_len),
        local_cpus: [usize::MAX; 16],
    }
}

/// Seconds that a registration of a page takes, and seconds a byte of a long one more.
fn reg_cost(md: &Md) -> types::Linear {
    static COSTS: Mutex<Vec<(String, f64, f64)>> = Mutex::new(Vec::new());
    let name = md.name();
    let mut costs = COSTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some((_, c, m)) = costs.iter().find(|(known, ..)| *known == name) {
        return types::Linear { c: *c, m: *m };
    }
    const PAGE: usize = 4096;
    const LONG: usize = 1 << 20;
    // Written, so that its pages are there.
    let mut memory = vec![1_u8; LONG];
    let mut least = |len: usize| {
        let times = (0..5).filter_map(|_| {
            let start = std::time::Instant::now();
            // SAFETY: the memory outlives the registration, which nobody has a key for.
            let registered = unsafe { md.md.register(memory.as_mut_ptr(), len, access_of(0)) };
            let took = start.elapsed().as_secs_f64();
            registered.ok().map(|_| took)
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let (short, long) = (least(PAGE), least(LONG));
    let (c, m) = match (short.is_finite(), long.is_finite()) {
        (true, true) => (short, ((long - short) / (LONG - PAGE) as f64).max(0.0)),
        _ => (0.0, 0.0),
    };
    costs.push((name, c, m));
    types::Linear { c, m }
}

/// Answers what a mask asks for of memory at an address. It cannot be passed as a file (dmabuf).
fn answer_memory(
    md: *mut Md,
    (address, length): (*const c_void, usize),
    attr: &AttrFields<MdMemAttr>,
) -> Result<(), Status> {
    let md = checked(md)?;
    let found = md.md.query(address.cast()).ok_or(Status::InvalidAddr)?;
    let left = found.start.saturating_add(found.len).saturating_sub(address.addr());
    if length > left {
        return Err(Status::InvalidAddr);
    }
    answer!(attr, 1 << 0, mem_type = HOST);
    answer!(attr, 1 << 1, sys_dev = u8::MAX);
    answer!(attr, 1 << 2, base_address = std::ptr::with_exposed_provenance_mut(found.start));
    answer!(attr, 1 << 3, alloc_length = found.len);
    answer!(attr, 1 << 4, dmabuf_fd = -1);
    answer!(attr, 1 << 5, dmabuf_offset = 0);
    Ok(())
}

entry! {
    /// Opens a memory domain.
    fn uct_md_open(
        component: *const Component, md_name: StrPtr, config: *const Config, md: OutPtr<*mut Md>,
    ) -> CStatus {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        // SAFETY: a component that is not null is one of the four, which are never freed.
        let component: &'static Component = checked(component)?;
        if md_name.get().is_none() || md.is_null() {
            return Err(invalid("uct_md_open: md_name or md is null"));
        }
        let dev = component.device_of(&md_name.text())?;
        let source = if config.is_null() { &super::component::from_env()? } else { &checked(config)?.source };
        let opened = any::open_md(component.tl, &dev, source).map_err(|error| {
            tracing::error!("cannot open memory domain {}/{dev}: {error}", component.tl);
            error.status()
        })?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        open_domains().push(OpenMd { id, tl: component.tl, md: opened.clone() });
        md.store(into_handle(Md { magic: Magic::of::<Md>(), component, dev, md: opened, id }))
    }

    /// Closes a memory domain. Memory and interfaces of it live on until they are freed.
    fn uct_md_close(md: *mut Md) {
        let md = from_handle(md)?;
        open_domains().retain(|open| open.id != md.id);
        Ok(())
    }

    /// Answers all attributes.
    fn uct_md_query(md: *mut Md, attr: OutPtr<types::MdAttr>) -> CStatus {
        attr.store(attr_of(checked(md)?, true))
    }

    /// Registers memory of the program.
    fn uct_md_mem_reg(
        md: *mut Md, address: *mut c_void, length: usize, flags: c_uint, memh: OutPtr<*mut MemHandle>,
    ) -> CStatus {
        let md = checked(md)?;
        if address.is_null() || length == 0 || memh.is_null() {
            return Err(invalid("uct_md_mem_reg: address or memh is null, or length is 0"));
        }
        // SAFETY: the caller keeps the memory until it deregisters it.
        let registered = unsafe { md.md.register(address.cast(), length, access_of(flags)) };
        let mem = registered.map_err(|error| {
            if flags & mem_flag::HIDE_ERRORS == 0 {
                tracing::error!("cannot register {length} bytes with {}: {error}", md.name());
            }
            error.status()
        })?;
        memh.store(MemHandle::new(mem))
    }

    /// Ends a registration.
    fn uct_md_mem_dereg(md: *mut Md, memh: *mut MemHandle) -> CStatus {
        checked(md)?;
        from_handle(memh).map(drop)
    }

    /// Announces the use of registered memory.
    fn uct_md_mem_advise(
        md: *mut Md, memh: *const MemHandle, address: *mut c_void, length: usize, advice: c_int,
    ) -> CStatus {
        let (md, memory) = (checked(md)?, checked(memh)?);
        let advice = match advice {
            0 => Advice::Normal,
            1 => Advice::WillNeed,
            _ => return Err(invalid("uct_md_mem_advise: no such advice")),
        };
        let offset = address.addr().checked_sub(memory.mem.addr().addr());
        let offset = offset.ok_or_else(|| invalid("uct_md_mem_advise: the address is not within the memory"))?;
        md.md.advise(&memory.mem, offset, length, advice).map_err(|error| error.status())
    }

    /// Answers what kind of memory is at an address: all is the host's.
    fn uct_md_mem_query(
        md: *mut Md, address: *const c_void, length: usize, attr: AttrPtr<MdMemAttr>,
    ) -> CStatus {
        let attr = attr.fields("uct_md_mem_query")?;
        answer_memory(md, (address, length), &attr)
    }

    /// As `uct_md_mem_query`, with flags of the memory: there are none.
    fn uct_md_mem_query_v2(
        md: *mut Md, address: *const c_void, length: usize, attr: AttrPtr<MdMemAttr>,
    ) -> CStatus {
        let attr = attr.fields("uct_md_mem_query_v2")?;
        answer_memory(md, (address, length), &attr)?;
        answer!(attr, 1 << 6, mem_flags = 0);
        Ok(())
    }

    /// Answers the type of memory: the host's.
    fn uct_md_detect_memory_type(
        md: *mut Md, address: *const c_void, _length: usize, memory_type: OutPtr<c_int>,
    ) -> CStatus {
        checked(md)?;
        if address.is_null() {
            return Err(invalid("uct_md_detect_memory_type: address is null"));
        }
        memory_type.store(HOST)
    }

    /// Allocates memory by the first method that works. A domain registers it, too; without one it has no
    /// handle.
    fn uct_mem_alloc(
        length: usize, methods: *const c_int, count: c_uint, params: ParamsPtr<MemAllocParams>,
        memory: OutPtr<AllocatedMemory>,
    ) -> CStatus {
        let params = params.fields("uct_mem_alloc")?;
        if memory.is_null() || methods.is_null() || count == 0 || length == 0 {
            return Err(invalid("uct_mem_alloc: memory or methods is null, or there are no methods, or length is 0"));
        }
        let memory_type = field!(params, mem_alloc_param::MEM_TYPE, mem_type);
        if memory_type.is_some_and(|wanted| wanted != HOST) {
            tracing::error!("uct_mem_alloc: memory of the host only");
            return Err(Status::Unsupported);
        }
        let flags = field!(params, mem_alloc_param::FLAGS, flags).unwrap_or(0);
        let at = field!(params, mem_alloc_param::ADDRESS, address).unwrap_or(std::ptr::null_mut());
        let domains = field!(params, mem_alloc_param::MDS, mds).zip(field!(params, mem_alloc_param::MDS, mds_count));
        let (list, domains) = domains.filter(|(list, count)| !list.is_null() && *count > 0).unzip();
        // SAFETY: the caller passes this many.
        let methods = unsafe { std::slice::from_raw_parts(methods, count as usize) };
        let list: &[*mut Md] = match (list, domains) {
            // SAFETY: as above.
            (Some(list), Some(count)) => unsafe { std::slice::from_raw_parts(list, count as usize) },
            _ => &[],
        };
        let mut last = Status::NoMemory;
        for method in methods {
            let method = method_of(*method).ok_or_else(|| invalid("uct_mem_alloc: no such method"))?;
            if list.is_empty() {
                match allocate_host(method, length, flags, at) {
                    Ok(made) => return memory.store(made),
                    Err(status) => last = status,
                }
            }
            for handle in list {
                let domain = checked(handle.cast_const())?;
                let quiet = flags | mem_flag::HIDE_ERRORS;
                match allocate(*handle, &domain.md, Some(&[method]), length, quiet, at, "uct_mem_alloc") {
                    Ok(made) => return memory.store(made),
                    Err(status) => last = status,
                }
            }
        }
        Err(last)
    }

    /// Frees memory of `uct_mem_alloc`.
    fn uct_mem_free(memory: *const AllocatedMemory) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { free(memory) }
    }
}

/// Names of `uct_alloc_method_t`, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static uct_alloc_method_names: Global<[*const c_char; 6]> = Global::new({
    let mut names = [std::ptr::null(); 6];
    names[alloc_method::THP as usize] = c"thp".as_ptr();
    names[alloc_method::MD as usize] = c"md".as_ptr();
    names[alloc_method::HEAP as usize] = c"heap".as_ptr();
    names[alloc_method::MMAP as usize] = c"mmap".as_ptr();
    names[alloc_method::HUGE as usize] = c"huge".as_ptr();
    names
});
