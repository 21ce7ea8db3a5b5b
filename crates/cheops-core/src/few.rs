//! A list that often has one element, which then takes no memory of its own.
//!
//! What must stay true: two lists with the same elements are equal, however they came to be.

use alloc::{vec, vec::Vec};
use core::{
    hash::{Hash, Hasher},
    mem,
    ops::{Deref, DerefMut},
    slice,
};

#[derive(Debug, Clone)]
pub(crate) enum Few<T> {
    One(T),
    /// Any number.
    Many(Vec<T>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T: Hash> Hash for Few<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(value) => slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(value) => slice::from_mut(value),
            Self::Many(values) => values,
        }
    }
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, value: T) {
        self.insert(self.len(), value);
    }

    pub(crate) fn insert(&mut self, at: usize, value: T) {
        match self {
            Self::Many(values) if values.is_empty() => *self = Self::One(value),
            Self::Many(values) => values.insert(at, value),
            Self::One(_) => self.many().insert(at, value),
        }
    }

    pub(crate) fn remove(&mut self, at: usize) -> T {
        self.many().remove(at)
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        match self {
            Self::One(value) if keep(value) => {}
            Self::One(_) => *self = Self::default(),
            Self::Many(values) => values.retain(keep),
        }
    }

    /// The elements, as a list that may have any number of them.
    fn many(&mut self) -> &mut Vec<T> {
        if let Self::One(_) = self
            && let Self::One(value) = mem::take(self)
        {
            *self = Self::Many(vec![value]);
        }
        match self {
            Self::Many(values) => values,
            // It was made to be many above.
            Self::One(_) => unreachable!(),
        }
    }
}

impl<T: Clone> Few<T> {
    pub(crate) fn resize(&mut self, len: usize, value: T) {
        match (self.len(), len) {
            (have, want) if have == want => {}
            (0, 1) => *self = Self::One(value),
            _ => self.many().resize(len, value),
        }
    }
}

/// Appends to a list that often has one or two elements: these take no more memory than they need.
pub(crate) fn push<T>(list: &mut Vec<T>, value: T) {
    if list.len() < 2 {
        list.reserve_exact(1);
    }
    list.push(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let (mut few, mut list) = (Few::default(), Vec::new());
            for n in 0..20_u32 {
                match rng.u8(..6) {
                    0 if !list.is_empty() => {
                        let at = rng.usize(..list.len());
                        assert_eq!(few.remove(at), list.remove(at));
                    }
                    1 => {
                        few.retain(|n| n % 3 != 0);
                        list.retain(|n| n % 3 != 0);
                    }
                    2 => {
                        let len = rng.usize(..4);
                        few.resize(len, n);
                        list.resize(len, n);
                    }
                    3 => {
                        let at = rng.usize(..=list.len());
                        few.insert(at, n);
                        list.insert(at, n);
                    }
                    _ => {
                        few.push(n);
                        list.push(n);
                    }
                }
                assert_eq!(*few, *list);
                let mut same = Few::default();
                for &n in &list {
                    same.push(n);
                }
                assert_eq!(few, same);
            }
        }
    }
}
