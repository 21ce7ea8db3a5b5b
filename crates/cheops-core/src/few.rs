//! Collections that are small in almost every resource, and take little memory then: a site has many
//! resources with one operation.
//!
//! - [`Few`]: a list that often has one element, which needs no allocation.
//! - [`OnDemand`]: a collection that is nearly always empty, and is allocated when it is first filled.
//!
//! What must stay true: two collections with the same elements are equal, however they came to be.

use alloc::{boxed::Box, vec, vec::Vec};
use core::{
    hash::{Hash, Hasher},
    mem,
    ops::{Deref, DerefMut},
    slice,
};

#[derive(Debug, Clone)]
pub(crate) enum Few<T> {
    One(T),
    /// Any number. The list is behind a pointer: it takes less room where there is one element.
    Many(OnDemand<Vec<T>>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(OnDemand::default())
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
            Self::Many(values) => values.filled_mut().map_or(&mut [], |values| values),
        }
    }
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, value: T) {
        match self {
            Self::Many(values) if !values.is_empty() => values.make().push(value),
            _ => self.insert(self.len(), value),
        }
    }

    pub(crate) fn insert(&mut self, at: usize, value: T) {
        match self {
            Self::Many(values) if values.is_empty() => *self = Self::One(value),
            Self::Many(values) => values.make().insert(at, value),
            Self::One(_) => {
                let values = self.many();
                // The list may never grow beyond two.
                values.reserve_exact(1);
                values.insert(at, value);
            }
        }
    }

    pub(crate) fn remove(&mut self, at: usize) -> T {
        self.many().remove(at)
    }

    /// Takes out the elements from a place on.
    pub(crate) fn split_off(&mut self, at: usize) -> Vec<T> {
        if at == self.len() { Vec::new() } else { self.many().split_off(at) }
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.many().truncate(len);
        }
    }

    pub(crate) fn extend(&mut self, values: impl IntoIterator<Item = T>) {
        values.into_iter().for_each(|value| self.push(value));
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        match self {
            Self::One(value) if keep(value) => {}
            Self::One(_) => *self = Self::default(),
            Self::Many(values) => {
                if let Some(values) = values.filled_mut() {
                    values.retain(keep);
                }
            }
        }
    }

    /// The elements, as a list that may have any number of them.
    fn many(&mut self) -> &mut Vec<T> {
        if let Self::One(_) = self
            && let Self::One(value) = mem::take(self)
        {
            *self = Self::Many(OnDemand(Some(Box::new(vec![value]))));
        }
        match self {
            Self::Many(values) => values.make(),
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

/// A collection that is nearly always empty: no memory is allocated before something is put in.
#[derive(Debug, Clone)]
pub(crate) struct OnDemand<T>(Option<Box<T>>);

impl<T> Default for OnDemand<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Default> OnDemand<T> {
    /// The collection, if something was ever put in.
    pub(crate) fn filled(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// The same, to take something out.
    pub(crate) fn filled_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// The collection, to put something in.
    pub(crate) fn make(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: PartialEq + Default> PartialEq for OnDemand<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => a == b,
            (Some(a), None) | (None, Some(a)) => **a == T::default(),
        }
    }
}

impl<T: Eq + Default> Eq for OnDemand<T> {}

impl<T: Hash + Default> Hash for OnDemand<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Some(value) => value.hash(state),
            None => T::default().hash(state),
        }
    }
}

impl<T> Deref for OnDemand<Vec<T>> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], |values| values)
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
                match rng.u8(..8) {
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
                    4 => {
                        let at = rng.usize(..=list.len());
                        assert_eq!(few.split_off(at), list.split_off(at));
                    }
                    5 => {
                        let len = rng.usize(..4);
                        few.truncate(len);
                        list.truncate(len);
                    }
                    _ => {
                        few.extend([n, n + 1]);
                        list.extend([n, n + 1]);
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

    #[test]
    fn an_emptied_collection_is_one_that_was_never_filled() {
        let hash = |rare: &OnDemand<Vec<u32>>| {
            let mut hasher = siphasher::sip::SipHasher13::new();
            rare.hash(&mut hasher);
            hasher.finish()
        };
        let never = OnDemand::<Vec<u32>>::default();
        let mut emptied = never.clone();
        emptied.make().push(7);
        assert_eq!(*emptied, [7]);
        assert_ne!(emptied, never);
        emptied.make().clear();
        assert_eq!(emptied, never);
        assert_eq!(hash(&emptied), hash(&never));
        assert!(never.is_empty());
    }
}
