//! Operations of several work requests: a scatter list is one to its caller and many to the device.
//! A row of `tx` for each part names its group here; the group's completion fires with its last part. Never posts.

use crate::api::{Comp, Error};

/// Names a group while any of its parts is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GroupId(pub(super) u32);

struct Group {
    left: u32,
    result: Result<(), Error>,
    comp: Comp,
}

/// The groups of an interface.
#[derive(Default)]
pub(super) struct Groups {
    all: Vec<Group>,
    free: Vec<u32>,
}

impl Groups {
    /// A group of `parts` parts, at least one.
    pub(super) fn open(&mut self, parts: u32, comp: Comp) -> GroupId {
        let group = Group { left: parts, result: Ok(()), comp };
        match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = group;
                GroupId(at)
            }
            None => {
                self.all.push(group);
                GroupId(self.all.len() as u32 - 1)
            }
        }
    }

    /// `parts` parts are over, with this result. When they were the last: whom to tell what.
    pub(super) fn end(
        &mut self,
        id: GroupId,
        parts: u32,
        result: Result<(), Error>,
    ) -> Option<(Comp, Result<(), Error>)> {
        let group = &mut self.all[id.0 as usize];
        // The first failure is the one that is told.
        group.result = group.result.and(result);
        group.left -= parts;
        if group.left > 0 {
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
    fn the_last_part_tells_the_first_failure() {
        let mut groups = Groups::default();
        let (a, b) = (groups.open(3, Comp::Token(1)), groups.open(1, Comp::Token(2)));
        assert!(groups.end(a, 1, Ok(())).is_none());
        assert!(groups.end(a, 1, Err(Error::PeerDead)).is_none());
        assert!(matches!(groups.end(b, 1, Ok(())), Some((Comp::Token(2), Ok(())))));
        assert_eq!(groups.open(1, Comp::None), b, "the row is used again");
        let told = groups.end(a, 1, Err(Error::RemoteAccess));
        assert!(matches!(told, Some((Comp::Token(1), Err(Error::PeerDead)))));
    }
}
