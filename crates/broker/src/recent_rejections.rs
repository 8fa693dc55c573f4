//! Stores the latest rejections of each client id, for the diagnosis of clients.
//!
//! A peer can claim any client id, so the number of ids and the memory for each id are limited.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use domain::{BrokerRejection, Clock, Timestamp};

/// Maximum number of rejections that are stored for one id.
const MAX_REJECTIONS_PER_ID: usize = 10;
/// Maximum number of ids.
const MAX_IDS: usize = 10_000;
/// Maximum number of characters of a stored id. A rejected client id can be longer than a valid one.
const MAX_ID_CHARS: usize = 255;

/// The latest rejections of each client id.
pub(super) struct RecentRejections {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_number: u64,
    rejections_by_id: HashMap<Arc<str>, RejectionsOfId>,
    /// All ids, by the number of their latest rejection.
    ids_by_latest_number: BTreeMap<u64, Arc<str>>,
}

struct RejectionsOfId {
    /// Number of the latest rejection. A later rejection of any id has a higher number.
    latest_number: u64,
    /// The latest rejections, the oldest first.
    rejections: VecDeque<Rejection>,
}

struct Rejection {
    reason: &'static str,
    peer: SocketAddr,
    at: Timestamp,
}

impl RecentRejections {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            inner: Mutex::default(),
        }
    }

    /// Adds a rejection of a peer that has claimed the client id `id`, which may be invalid. If there
    /// are too many ids, removes the id whose latest rejection is the oldest.
    pub fn add(&self, id: &str, reason: &'static str, peer: SocketAddr) {
        // No client has an empty id.
        if id.is_empty() {
            return;
        }
        let rejection = Rejection {
            reason,
            peer,
            at: self.clock.now(),
        };
        self.inner.lock().add(truncate_id(id), rejection);
    }

    /// Returns the latest rejections of peers that have claimed this client id, the newest first.
    pub fn of_client(&self, id: &str) -> Vec<BrokerRejection> {
        let inner = self.inner.lock();
        let Some(of_id) = inner.rejections_by_id.get(truncate_id(id)) else {
            return Vec::new();
        };
        let newest_first = of_id.rejections.iter().rev();
        newest_first
            .map(|rejection| BrokerRejection {
                reason: rejection.reason.to_owned(),
                peer: rejection.peer.to_string(),
                at: rejection.at,
            })
            .collect()
    }
}

impl Inner {
    fn add(&mut self, id: &str, rejection: Rejection) {
        self.last_number += 1;
        let number = self.last_number;
        if let Some(of_id) = self.rejections_by_id.get_mut(id) {
            if of_id.rejections.len() == MAX_REJECTIONS_PER_ID {
                of_id.rejections.pop_front();
            }
            of_id.rejections.push_back(rejection);
            let previous_number = std::mem::replace(&mut of_id.latest_number, number);
            if let Some(id) = self.ids_by_latest_number.remove(&previous_number) {
                self.ids_by_latest_number.insert(number, id);
            }
            return;
        }
        if self.rejections_by_id.len() == MAX_IDS
            && let Some((_, oldest_id)) = self.ids_by_latest_number.pop_first()
        {
            self.rejections_by_id.remove(&oldest_id);
        }
        let id: Arc<str> = id.into();
        let of_id = RejectionsOfId {
            latest_number: number,
            rejections: VecDeque::from([rejection]),
        };
        self.ids_by_latest_number.insert(number, id.clone());
        self.rejections_by_id.insert(id, of_id);
    }
}

/// Returns the first [`MAX_ID_CHARS`] characters of a client id.
pub(super) fn truncate_id(id: &str) -> &str {
    let end = id.char_indices().nth(MAX_ID_CHARS);
    &id[..end.map_or(id.len(), |(index, _)| index)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::SystemClock;

    fn recent_rejections() -> RecentRejections {
        RecentRejections::new(Arc::new(SystemClock))
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn peers(rejections: &RecentRejections, id: &str) -> Vec<String> {
        let rejections = rejections.of_client(id);
        rejections.into_iter().map(|entry| entry.peer).collect()
    }

    #[test]
    fn latest_rejections_of_an_id_are_returned_the_newest_first() {
        let rejections = recent_rejections();
        let before = Timestamp::now();
        for port in 1..=12 {
            rejections.add("a", "overloaded", peer(port));
            rejections.add("b", "cn_mismatch", peer(100));
        }
        let expected: Vec<_> = (3..=12).rev().map(|port| peer(port).to_string()).collect();
        assert_eq!(peers(&rejections, "a"), expected);
        for rejection in rejections.of_client("b") {
            assert_eq!(rejection.reason, "cn_mismatch");
            assert!(rejection.at >= before && rejection.at <= Timestamp::now());
        }
        assert_eq!(rejections.of_client("c"), []);
    }

    #[test]
    fn id_with_the_oldest_latest_rejection_is_removed_first() {
        let rejections = recent_rejections();
        for n in 0..MAX_IDS {
            rejections.add(&format!("id-{n}"), "overloaded", peer(1));
        }
        // The first id has a new rejection, so the second id is the oldest.
        rejections.add("id-0", "overloaded", peer(2));
        for (new_id, removed_id) in [("x", "id-1"), ("y", "id-2")] {
            assert_eq!(peers(&rejections, removed_id).len(), 1);
            rejections.add(new_id, "overloaded", peer(3));
            assert!(peers(&rejections, removed_id).is_empty());
        }
        assert_eq!(peers(&rejections, "id-0").len(), 2);
        let inner = rejections.inner.lock();
        assert_eq!(inner.rejections_by_id.len(), MAX_IDS);
        assert_eq!(inner.ids_by_latest_number.len(), MAX_IDS);
    }

    #[test]
    fn ids_are_truncated_between_characters_and_empty_ids_are_not_stored() {
        assert_eq!(truncate_id("short"), "short");
        let long_id = "ü".repeat(300);
        assert_eq!(truncate_id(&long_id).chars().count(), MAX_ID_CHARS);
        let rejections = recent_rejections();
        rejections.add(&long_id, "invalid_client_id", peer(1));
        rejections.add("", "invalid_client_id", peer(1));
        assert_eq!(rejections.of_client(&long_id).len(), 1);
        let inner = rejections.inner.lock();
        let ids: Vec<_> = inner.rejections_by_id.keys().collect();
        assert_eq!(ids, [&Arc::from(truncate_id(&long_id))]);
    }
}
