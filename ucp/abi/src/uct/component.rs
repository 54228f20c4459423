//! Components: one for each transport. Their resources are the transport's devices on this machine.

use std::ffi::{c_char, c_uint};

use ::ucs::Status;
use ::ucs::config::Source;
use ::uct::any;
use ::uct::api::{DevKind, TlResource};

use super::md::Md;
use super::name_of;
use super::types::{self, ComponentAttr, MdResource, component_attr, device_type};
use crate::arg::{AttrPtr, OutPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::checked;
use crate::handle::{Handle, Magic};
use crate::packed::{Packed, alloc_list, release};
use crate::ucs::global::Global;

/// `uct_component_t`.
#[repr(C)]
pub(crate) struct Component {
    magic: Magic,
    /// Name of the transport.
    pub(crate) tl: &'static str,
}

// SAFETY: the kind of a component, which is never freed, is not changed.
unsafe impl Sync for Component {}

impl Handle for Component {
    const MAGIC: u32 = 0x7563_636d;
    const NAME: &'static str = "component";
    const IS_STATIC: bool = true;
    fn magic(&self) -> &Magic {
        &self.magic
    }

    fn is_live(address: usize) -> bool {
        COMPONENTS.iter().any(|one| std::ptr::from_ref(one).addr() == address)
    }
}

static COMPONENTS: [Component; 4] = {
    const fn component(tl: &'static str) -> Component {
        Component { magic: Magic::of_static(Component::MAGIC), tl }
    }
    [component("self"), component("posix"), component("cma"), component("efa")]
};

/// Configuration of the environment.
pub(crate) fn from_env() -> Result<Source, Status> {
    Source::from_env().map_err(|error| {
        tracing::error!("{error}");
        Status::InvalidParam
    })
}

impl Component {
    /// Devices of the transport on this machine.
    fn resources(&self) -> Result<Vec<TlResource>, Status> {
        let all = any::resources(&from_env()?).map_err(|error| {
            tracing::error!("{error}");
            error.status()
        })?;
        Ok(all.into_iter().filter(|found| found.tl == self.tl).collect())
    }

    /// Name of the memory domain of a device: a name of the machine's only one would say nothing.
    fn md_name(&self, resource: &TlResource) -> String {
        if resource.kind == DevKind::Net { resource.dev.clone() } else { self.tl.to_owned() }
    }

    /// The device whose memory domain has that name.
    pub(crate) fn device_of(&self, md_name: &str) -> Result<String, Status> {
        let found = self.resources()?.into_iter().find(|resource| self.md_name(resource) == md_name);
        found.map(|resource| resource.dev).ok_or_else(|| {
            tracing::error!("component {} has no memory domain {md_name}", self.tl);
            Status::NoDevice
        })
    }
}

entry! {
    /// Lists the components: an array that the program returns.
    fn uct_query_components(components: OutPtr<*mut *const Component>, count: OutPtr<c_uint>) -> CStatus {
        if components.is_null() || count.is_null() {
            return Err(invalid("uct_query_components: components or count is null"));
        }
        crate::log::init_from_env();
        let list = alloc_list::<*const Component>(COMPONENTS.len(), Packed::Components)?;
        for (at, component) in COMPONENTS.iter().enumerate() {
            // SAFETY: the array has this many elements.
            unsafe { list.add(at).write(std::ptr::from_ref(component)) };
        }
        components.store(list)?;
        count.store(COMPONENTS.len() as c_uint)
    }

    /// Frees a list of components.
    fn uct_release_component_list(components: *mut *const Component) {
        release(components.cast(), Packed::Components)
    }

    /// Answers what the mask asks for. The program has room for as many memory domains as it was told.
    fn uct_component_query(component: *const Component, attr: AttrPtr<ComponentAttr>) -> CStatus {
        let component = checked(component)?;
        let attr = attr.fields("uct_component_query")?;
        answer!(attr, component_attr::NAME, name = name_of(component.tl));
        answer!(attr, component_attr::FLAGS, flags = 0);
        let resources = component.resources()?;
        answer!(attr, component_attr::MD_RESOURCE_COUNT, md_resource_count = resources.len() as c_uint);
        let Some(list) = field!(attr, component_attr::MD_RESOURCES, md_resources) else { return Ok(()) };
        if list.is_null() && !resources.is_empty() {
            return Err(invalid("uct_component_query: md_resources is null"));
        }
        for (at, resource) in resources.iter().enumerate() {
            let md_name = name_of(&component.md_name(resource));
            // SAFETY: the caller has room for as many as `md_resource_count` says.
            unsafe { list.add(at).write(MdResource { md_name }) };
        }
        Ok(())
    }

    /// Lists the transports of a memory domain, one: an array that the program returns.
    fn uct_md_query_tl_resources(
        md: *mut Md, resources: OutPtr<*mut types::TlResource>, count: OutPtr<c_uint>,
    ) -> CStatus {
        let md = checked(md)?;
        if resources.is_null() || count.is_null() {
            return Err(invalid("uct_md_query_tl_resources: resources or count is null"));
        }
        let found = md.component.resources()?.into_iter().find(|resource| resource.dev == md.dev);
        let found = found.ok_or(Status::NoDevice)?;
        let dev_type = match found.kind {
            DevKind::Loopback => device_type::SELF,
            DevKind::Shm => device_type::SHM,
            _ => device_type::NET,
        };
        let list = alloc_list::<types::TlResource>(1, Packed::Transports)?;
        let (tl_name, dev_name) = (name_of(found.tl), name_of(&found.dev));
        // SAFETY: the array has one element.
        unsafe { list.write(types::TlResource { tl_name, dev_name, dev_type, sys_device: u8::MAX }) };
        resources.store(list)?;
        count.store(1)
    }

    /// Frees a list of transports.
    fn uct_release_tl_resource_list(resources: *mut types::TlResource) {
        release(resources.cast(), Packed::Transports)
    }
}

/// Names of `uct_device_type_t`.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static uct_device_type_names: Global<[*const c_char; 4]> = Global::new({
    let mut names = [std::ptr::null(); 4];
    names[device_type::NET as usize] = c"network".as_ptr();
    names[device_type::SHM as usize] = c"intra-node".as_ptr();
    names[device_type::ACC as usize] = c"accelerator".as_ptr();
    names[device_type::SELF as usize] = c"loopback".as_ptr();
    names
});
