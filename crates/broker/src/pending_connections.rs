//! Limits the number of connections that have not sent a complete CONNECT packet.
//!
//! A client needs a fraction of a second for the TLS handshake and the CONNECT packet. A peer that
//! sends no CONNECT packet keeps its connection until the timeout. When the limit is reached, a new
//! connection therefore replaces a pending connection, so that such peers do not lock out clients. A
//! pending connection is not replaced in its first moments. Otherwise a burst of new connections would
//! replace all connections before any of them could complete.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Time for which a pending connection cannot be replaced.
const MIN_CONNECT_TIME: Duration = Duration::from_millis(500);

/// The pending connections of all listeners.
#[derive(Debug)]
pub(super) struct PendingConnections {
    max_count: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last_id: u64,
    /// The pending connections, the oldest first.
    by_id: BTreeMap<u64, PendingConnection>,
    counts_by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct PendingConnection {
    address: IpAddr,
    accepted_at: Instant,
    replaced: oneshot::Sender<()>,
}

/// Resolves to `Ok` when a new connection replaces this connection. Resolves to `Err` when the
/// connection is no longer pending.
pub(super) type Replaced = oneshot::Receiver<()>;

/// Counts one pending connection until the slot is dropped.
#[derive(Debug)]
pub(super) struct PendingSlot {
    connections: Arc<PendingConnections>,
    id: u64,
}

impl PendingConnections {
    pub fn new(max_count: usize) -> Self {
        Self {
            max_count,
            inner: Mutex::default(),
        }
    }

    /// Adds a connection. If the limit is reached, the connection replaces the oldest pending
    /// connection of the address with the most pending connections. If that connection is too new
    /// to be replaced, the connection replaces the oldest pending connection of all addresses.
    /// Returns `None` if that connection is too new, too.
    pub fn add(self: &Arc<Self>, address: IpAddr) -> Option<(PendingSlot, Replaced)> {
        let mut inner = self.inner.lock();
        if inner.by_id.len() >= self.max_count {
            let id = inner.find_replaceable()?;
            if let Some(connection) = inner.remove(id) {
                // `send` fails only if the connection has just ended.
                let _ = connection.replaced.send(());
            }
        }
        let (replaced, receiver) = oneshot::channel();
        inner.last_id += 1;
        let id = inner.last_id;
        inner.by_id.insert(
            id,
            PendingConnection {
                address,
                accepted_at: Instant::now(),
                replaced,
            },
        );
        *inner.counts_by_address.entry(address).or_default() += 1;
        let slot = PendingSlot {
            connections: self.clone(),
            id,
        };
        Some((slot, receiver))
    }
}

impl Inner {
    fn find_replaceable(&self) -> Option<u64> {
        let (busiest_address, _) = self
            .counts_by_address
            .iter()
            .max_by_key(|(_, count)| **count)?;
        let oldest_of_address = self
            .by_id
            .iter()
            .find(|(_, connection)| connection.address == *busiest_address);
        let oldest_of_all = self.by_id.first_key_value();
        [oldest_of_address, oldest_of_all]
            .into_iter()
            .flatten()
            .find(|(_, connection)| connection.accepted_at.elapsed() >= MIN_CONNECT_TIME)
            .map(|(id, _)| *id)
    }

    fn remove(&mut self, id: u64) -> Option<PendingConnection> {
        let connection = self.by_id.remove(&id)?;
        if let Some(count) = self.counts_by_address.get_mut(&connection.address) {
            *count -= 1;
            if *count == 0 {
                self.counts_by_address.remove(&connection.address);
            }
        }
        Some(connection)
    }
}

impl PendingSlot {
    /// Ends the pending state after a complete CONNECT packet. Returns false if a new connection has
    /// already replaced this one.
    #[must_use]
    pub fn complete(self) -> bool {
        self.connections.inner.lock().remove(self.id).is_some()
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.connections.inner.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[tokio::test(start_paused = true)]
    async fn new_connection_replaces_the_oldest_of_the_busiest_address() {
        let connections = Arc::new(PendingConnections::new(3));
        let (_client, mut client_replaced) = connections.add(CLIENT).unwrap();
        let (_first, mut first_replaced) = connections.add(ATTACKER).unwrap();
        let (_second, mut second_replaced) = connections.add(ATTACKER).unwrap();
        assert!(
            connections.add(CLIENT).is_none(),
            "no connection is old enough"
        );
        tokio::time::advance(MIN_CONNECT_TIME).await;
        let (_new, _) = connections.add(CLIENT).unwrap();
        assert_eq!(first_replaced.try_recv(), Ok(()));
        assert!(second_replaced.try_recv().is_err());
        assert!(client_replaced.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_a_complete_connect_packet_is_not_replaced() {
        let connections = Arc::new(PendingConnections::new(1));
        let (slot, replaced) = connections.add(CLIENT).unwrap();
        drop(slot);
        assert!(replaced.await.is_err());
        assert!(connections.add(ATTACKER).is_some());
        let inner = connections.inner.lock();
        assert!(inner.by_id.is_empty() && inner.counts_by_address.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn new_connection_replaces_the_oldest_of_all_if_the_busiest_address_has_only_new_ones() {
        let connections = Arc::new(PendingConnections::new(3));
        let (_client, mut client_replaced) = connections.add(CLIENT).unwrap();
        tokio::time::advance(MIN_CONNECT_TIME).await;
        let (_first, mut first_replaced) = connections.add(ATTACKER).unwrap();
        let (_second, mut second_replaced) = connections.add(ATTACKER).unwrap();
        let (_new, _) = connections.add(ATTACKER).unwrap();
        assert_eq!(client_replaced.try_recv(), Ok(()));
        assert!(first_replaced.try_recv().is_err());
        assert!(second_replaced.try_recv().is_err());
        assert!(
            connections.add(CLIENT).is_none(),
            "no connection is old enough"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_connection_cannot_complete() {
        let connections = Arc::new(PendingConnections::new(1));
        let (first, mut first_replaced) = connections.add(CLIENT).unwrap();
        tokio::time::advance(MIN_CONNECT_TIME).await;
        let (second, mut second_replaced) = connections.add(CLIENT).unwrap();
        assert!(!first.complete());
        assert_eq!(first_replaced.try_recv(), Ok(()));
        assert!(second.complete());
        assert!(connections.add(CLIENT).is_some());
        assert!(second_replaced.try_recv().is_err());
    }
}
