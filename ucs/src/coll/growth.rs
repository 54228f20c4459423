//! Growth policy for long-lived lists: by a sixteenth instead of twofold. For per-peer and per-endpoint
//! lists.

const FRACTION: usize = 16;
const MIN_GROWTH: usize = 16;

/// Makes room for one element more, and for a few that may follow.
pub fn reserve_one<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact(MIN_GROWTH.max(list.len() / FRACTION));
    }
}

/// Appends.
pub fn push<T>(list: &mut Vec<T>, value: T) {
    reserve_one(list);
    list.push(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_rare_and_leaves_little_spare() {
        let (mut list, mut grown) = (Vec::new(), 0);
        for n in 0..100_000 {
            let before = list.capacity();
            push(&mut list, n);
            grown += usize::from(list.capacity() != before);
            assert!(list.capacity() <= list.len() + MIN_GROWTH.max(list.len() / FRACTION));
        }
        assert!(grown < 150, "{grown}");
        assert!(list.iter().copied().eq(0..100_000));
    }
}
