//! Seals: how a site proves that records are its own, and as it made them.
//!
//! A signature costs more than all the rest that is done about a record, so records that are written in
//! one batch are signed at once. Their hashes are the leaves of a tree; its root is signed; and the seal
//! of a record is that signature with the hashes on the way from the record's leaf to the root. Each
//! record can so be checked by itself, wherever it comes from, and of many from one batch the first
//! alone costs the check of a signature.
//!
//! What must stay true:
//! - a seal holds for one record of one site, and for no other;
//! - what is read as a seal is bounded, and so is what a [`Checker`] remembers;
//! - that a check was remembered never makes a difference to its result.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use cheops_core::{
    id::SiteId,
    trust::{PublicKey, Seal},
};
use ring::signature::{ED25519, UnparsedPublicKey};

use super::Identity;

/// The most records that are sealed by one signature.
pub const MOST: usize = 64;
/// The longest way from a leaf to the root.
const DEEP: usize = MOST.ilog2() as usize;
/// How many roots a checker remembers.
const REMEMBERED: usize = 1_024;

const SIGNATURE: usize = 64;
const HASH: usize = 32;

type Hash = [u8; HASH];

/// What the hash of a record is made for, and that of two others, and what is signed: none of them can be
/// taken for another.
const LEAF: &str = "Cheops: a record that is sealed";
const PAIR: &str = "Cheops: two hashes in a seal";
const ROOT: &[u8] = b"Cheops: the records of a site\0";

/// What a seal of one record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    signature: [u8; SIGNATURE],
    /// The hashes beside the way, from the leaf up, and on which side of it each is.
    way: Vec<(Side, Hash)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Proof {
    /// As a seal: the signature, a bit for the side of each hash, and the hashes.
    pub fn encode(&self) -> Option<Seal> {
        Seal::new(&self.bytes())
    }

    fn bytes(&self) -> Vec<u8> {
        let sides = self.way.iter().enumerate();
        let sides = sides.fold(1_u8 << self.way.len(), |sides, (n, (side, _))| {
            sides | u8::from(*side == Side::Right) << n
        });
        let hashes = self.way.iter().flat_map(|(_, hash)| hash);
        self.signature.iter().chain([&sides]).chain(hashes).copied().collect()
    }

    /// What a seal says, if it is one.
    pub fn decode(seal: &Seal) -> Option<Self> {
        let (signature, rest) = seal.as_bytes().split_first_chunk()?;
        let (&sides, hashes) = rest.split_first()?;
        // The highest bit that is set says how many there are.
        let length = usize::try_from(sides.checked_ilog2()?).ok()?;
        let (hashes, left) = hashes.as_chunks::<HASH>();
        if length > DEEP || hashes.len() != length || !left.is_empty() {
            return None;
        }
        let side = |n: usize| if sides >> n & 1 == 1 { Side::Right } else { Side::Left };
        let way = hashes.iter().enumerate().map(|(n, hash)| (side(n), *hash)).collect();
        Some(Self { signature: *signature, way })
    }

    /// The root that a record with this seal belongs to.
    fn root(&self, record: &[u8]) -> Hash {
        self.way.iter().fold(leaf(record), |below, (side, beside)| match side {
            Side::Left => pair(beside, &below),
            Side::Right => pair(&below, beside),
        })
    }
}

/// Seals records of a site, in their encoding.
pub fn seal<R: AsRef<[u8]>>(identity: &Identity, site: &SiteId, records: &[R]) -> Vec<Proof> {
    records.chunks(MOST).flat_map(|records| seal_few(identity, site, records)).collect()
}

fn seal_few<R: AsRef<[u8]>>(identity: &Identity, site: &SiteId, records: &[R]) -> Vec<Proof> {
    let mut level: Vec<Hash> = records.iter().map(|record| leaf(record.as_ref())).collect();
    let mut ways: Vec<Vec<(Side, Hash)>> = vec![Vec::new(); records.len()];
    let mut places: Vec<usize> = (0..records.len()).collect();
    while level.len() > 1 {
        for (way, place) in ways.iter_mut().zip(&mut places) {
            let (on, other) =
                if *place % 2 == 0 { (Side::Right, *place + 1) } else { (Side::Left, *place - 1) };
            // The last of an odd number goes up as it is.
            way.extend(level.get(other).map(|hash| (on, *hash)));
            *place /= 2;
        }
        level = level
            .chunks(2)
            .map(|two| match two {
                [left, right] => pair(left, right),
                last => last[0],
            })
            .collect();
    }
    let Some(root) = level.first() else { return Vec::new() };
    let signature = identity.sign(&statement(site, root));
    ways.into_iter().map(|way| Proof { signature, way }).collect()
}

fn leaf(record: &[u8]) -> Hash {
    blake3::derive_key(LEAF, record)
}

fn pair(left: &Hash, right: &Hash) -> Hash {
    let mut hasher = blake3::Hasher::new_derive_key(PAIR);
    hasher.update(left).update(right);
    *hasher.finalize().as_bytes()
}

/// What is signed.
fn statement(site: &SiteId, root: &Hash) -> Vec<u8> {
    // A name has no zero byte, so that it ends where it ends.
    [ROOT, site.as_str().as_bytes(), &[0], root].concat()
}

/// Checks seals, and remembers the signatures that it has found to be good.
#[derive(Debug, Default)]
pub struct Checker {
    good: HashSet<Arc<Signed>>,
    /// The same, the oldest first.
    order: VecDeque<Arc<Signed>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Signed {
    key: PublicKey,
    site: SiteId,
    root: Hash,
    signature: [u8; SIGNATURE],
}

impl Checker {
    /// Whether a record, in its encoding, was sealed by a site that has this key.
    pub fn check(&mut self, key: &PublicKey, site: &SiteId, record: &[u8], seal: &Proof) -> bool {
        let root = seal.root(record);
        let signed = Signed { key: *key, site: site.clone(), root, signature: seal.signature };
        if self.good.contains(&signed) {
            return true;
        }
        let public = UnparsedPublicKey::new(&ED25519, key.as_bytes());
        if public.verify(&statement(site, &root), &seal.signature).is_err() {
            return false;
        }
        if self.order.len() == REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.good.remove(&oldest);
        }
        let signed = Arc::new(signed);
        self.good.insert(signed.clone());
        self.order.push_back(signed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32]).unwrap()
    }

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    fn records(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|n| format!("record {n}").into_bytes()).collect()
    }

    #[test]
    fn each_of_many_can_be_checked_by_itself() {
        let (identity, site) = (identity(1), site("site1"));
        for count in [0, 1, 2, 3, 5, 8, 63, 64, 65, 130] {
            let records = records(count);
            let seals = seal(&identity, &site, &records);
            assert_eq!(seals.len(), count);
            for (record, seal) in records.iter().zip(&seals) {
                let read = Proof::decode(&seal.encode().unwrap()).unwrap();
                assert_eq!(read, *seal);
                // Whether it is the first of its batch makes no difference.
                assert!(Checker::default().check(&identity.public(), &site, record, &read));
            }
            let mut checker = Checker::default();
            let check = |(record, seal)| checker.check(&identity.public(), &site, record, seal);
            assert!(records.iter().map(Vec::as_slice).zip(&seals).all(check));
            assert_eq!(checker.order.len(), count.div_ceil(MOST), "signatures that were checked");
        }
    }

    #[test]
    fn a_seal_holds_for_nothing_else() {
        let (identity, here) = (identity(1), site("site1"));
        let records = records(5);
        let seals = seal(&identity, &here, &records);
        let mut checker = Checker::default();
        let key = identity.public();
        for (n, seal) in seals.iter().enumerate() {
            for (m, record) in records.iter().enumerate() {
                assert_eq!(checker.check(&key, &here, record, seal), n == m, "{n} {m}");
            }
            let another = self::identity(2).public();
            assert!(!checker.check(&another, &here, &records[n], seal), "another key");
            assert!(!checker.check(&key, &site("site2"), &records[n], seal), "another site");
            let mut altered = records[n].clone();
            altered[0] ^= 1;
            assert!(!checker.check(&key, &here, &altered, seal), "altered");
            // A hash of the tree is not a record.
            let inner = [leaf(&records[0]), leaf(&records[1])].concat();
            assert!(!checker.check(&key, &here, &inner, seal), "a part of the tree");
        }
    }

    #[test]
    fn a_seal_with_any_bit_changed_is_none() {
        let (identity, here) = (identity(1), site("site1"));
        let records = records(3);
        let seals = seal(&identity, &here, &records);
        let bytes = seals[1].bytes();
        let mut checker = Checker::default();
        assert!(checker.check(&identity.public(), &here, &records[1], &seals[1]));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let changed = Seal::new(&changed).unwrap();
            let holds = Proof::decode(&changed)
                .is_some_and(|seal| checker.check(&identity.public(), &here, &records[1], &seal));
            assert!(!holds, "bit {bit}");
        }
    }

    #[test]
    fn what_is_not_a_seal_is_not_read_as_one() {
        let good = seal(&identity(1), &site("a"), &records(2))[0].bytes();
        assert!(Proof::decode(&Seal::new(&good).unwrap()).is_some());
        for bytes in [
            Vec::new(),
            vec![0; 64],
            vec![0; 65],
            good[..good.len() - 1].to_vec(),
            [&good[..], &[0]].concat(),
            [&good[..], &[0; 32]].concat(),
            // More hashes than any tree is high.
            [&[0; 64][..], &[1 << 7], &[0; 7 * 32]].concat(),
        ] {
            let seal = Seal::new(&bytes).unwrap();
            assert_eq!(Proof::decode(&seal), None, "{} bytes", bytes.len());
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_read_as_a_seal_is_written_in_the_same_bytes(
            signature: [u8; 32], sides: u8, hashes in 0..9_usize, cut in 0..3_usize
        ) {
            let bytes = [&signature[..], &signature, &[sides], &[9; 32].repeat(hashes)].concat();
            let bytes = &bytes[..bytes.len() - cut];
            if let Some(proof) = Proof::decode(&Seal::new(bytes).unwrap()) {
                proptest::prop_assert_eq!(proof.bytes(), bytes);
            } else {
                let fits = sides != 0 && sides.ilog2() as usize == hashes && hashes <= DEEP;
                proptest::prop_assert!(!fits || cut > 0);
            }
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (identity, here) = (identity(1), site("a"));
        let mut checker = Checker::default();
        for n in 0..REMEMBERED + 10 {
            let record = n.to_be_bytes();
            let seals = seal(&identity, &here, &[record]);
            assert!(checker.check(&identity.public(), &here, &record, &seals[0]));
        }
        assert_eq!((checker.good.len(), checker.order.len()), (REMEMBERED, REMEMBERED));
    }
}
