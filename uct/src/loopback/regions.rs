//! Registrations of a thread by number, for all its domains. Reused, so that steady use allocates nothing.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::api::Error;
use crate::base::alloc::Backing;
use crate::base::direct::Window;

const SPARE: usize = 64;

thread_local! {
    static REGISTRY: RefCell<Registry> = RefCell::default();
    /// The next raw key. Keys stay in this thread's packets, so counting from a random start is enough.
    static NEXT_MR_KEY: Cell<u64> = Cell::new(super::new_id());
}

#[derive(Default)]
struct Registry {
    by_number: HashMap<u64, Rc<Region>, FxBuildHasher>,
    /// Closed and unreferenced.
    spare: Vec<Rc<Region>>,
}

#[derive(Debug)]
pub(super) struct Region {
    window: Window,
    open: Cell<bool>,
    /// Keeps domain-allocated memory mapped until the region is closed and no closure runs on it.
    backing: RefCell<Option<Rc<Backing>>>,
    /// Numbers, issued on demand.
    key: Cell<Option<u64>>,
    mr_key: Cell<Option<u64>>,
}

impl Region {
    /// # Safety
    /// The window may be used until the region is closed, or its backing dropped where it has one.
    pub(super) unsafe fn open(window: Window, backing: Option<Backing>) -> Rc<Region> {
        let region = Region {
            window,
            open: Cell::new(true),
            backing: RefCell::new(backing.map(Rc::new)),
            key: Cell::default(),
            mr_key: Cell::default(),
        };
        if let Some(mut spare) = REGISTRY.with_borrow_mut(|all| all.spare.pop())
            && let Some(place) = Rc::get_mut(&mut spare)
        {
            *place = region;
            return spare;
        }
        Rc::new(region)
    }

    pub(super) fn close(self: &Rc<Self>) {
        self.open.set(false);
        self.backing.take();
        // The thread may be ending, its list gone before us.
        let _ = REGISTRY.try_with(|all| {
            let mut all = all.borrow_mut();
            for number in [self.key.get(), self.mr_key.get()].into_iter().flatten() {
                all.by_number.remove(&number);
            }
            // Else a key still refers to it, and must find it closed.
            if Rc::strong_count(self) == 1 && all.spare.len() < SPARE {
                all.spare.push(self.clone());
            }
        });
    }

    /// The number that is in packed keys, which may be shown to other threads and processes.
    pub(super) fn key(self: &Rc<Self>) -> u64 {
        self.number(&self.key, super::new_id)
    }

    /// The number that is in packets of this thread. // HOT
    pub(super) fn mr_key(self: &Rc<Self>) -> u64 {
        self.number(&self.mr_key, || NEXT_MR_KEY.replace(NEXT_MR_KEY.get().wrapping_add(1)))
    }

    fn number(self: &Rc<Self>, of: &Cell<Option<u64>>, new: impl FnOnce() -> u64) -> u64 {
        of.get().unwrap_or_else(|| {
            let number = new();
            of.set(Some(number));
            REGISTRY.with_borrow_mut(|all| all.by_number.insert(number, self.clone()));
            number
        })
    }

    /// The region that one of its numbers names. // HOT
    pub(super) fn of(number: u64) -> Result<Rc<Region>, Error> {
        REGISTRY.with_borrow(|all| all.by_number.get(&number).cloned()).ok_or(Error::RemoteAccess)
    }

    /// The memory, while it is registered. // HOT
    #[inline(always)]
    pub(super) fn window(&self) -> Result<&Window, Error> {
        if self.open.get() { Ok(&self.window) } else { Err(Error::RemoteAccess) }
    }

    pub(super) fn keep_mapped(&self) -> Option<Rc<Backing>> {
        self.backing.borrow().clone()
    }

    pub(super) fn any_window(&self) -> &Window {
        &self.window
    }
}
