//! Work-request groups: one operation of several work requests, completed with the last.

use crate::api::{Comp, Error};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WrGroupId(pub(super) u32);

struct WrGroup {
    remaining: u32,
    result: Result<(), Error>,
    comp: Comp,
}

#[derive(Default)]
pub(super) struct WrGroups {
    all: Vec<WrGroup>,
    free: Vec<u32>,
}

impl WrGroups {
    pub(super) fn add(&mut self, requests: u32, comp: Comp) -> WrGroupId {
        let group = WrGroup { remaining: requests, result: Ok(()), comp };
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = group;
                WrGroupId(at)
            }
            None => {
                self.all.push(group);
                WrGroupId(self.all.len() as u32 - 1)
            }
        }
    }

    /// Ends `requests` work requests; the last returns the operation's completion and result.
    pub(super) fn complete(
        &mut self,
        id: WrGroupId,
        requests: u32,
        result: Result<(), Error>,
    ) -> Option<(Comp, Result<(), Error>)> {
        let group = &mut self.all[id.0 as usize];
        // The first failure is reported.
        group.result = group.result.and(result);
        group.remaining -= requests;
        if group.remaining > 0 {
            return None;
        }
        self.free.push(id.0);
        Some((std::mem::take(&mut group.comp), group.result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_reports_the_first_failure() {
        let mut groups = WrGroups::default();
        let (a, b) = (groups.add(3, Comp::Token(1)), groups.add(1, Comp::Token(2)));
        assert!(groups.complete(a, 1, Ok(())).is_none());
        assert!(groups.complete(a, 1, Err(Error::PeerDead)).is_none());
        assert!(matches!(groups.complete(b, 1, Ok(())), Some((Comp::Token(2), Ok(())))));
        assert_eq!(groups.add(1, Comp::None), b, "the slot is used again");
        let ended = groups.complete(a, 1, Err(Error::RemoteAccess));
        assert!(matches!(ended, Some((Comp::Token(1), Err(Error::PeerDead)))));
    }
}
