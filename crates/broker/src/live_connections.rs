//! Tracks the current connections of each client.
//!
//! When a client reconnects, the broker often accepts the new connection before it detects that the
//! previous connection is broken. The last will of the previous connection is then published after
//! the new connection was registered, and must be ignored. Therefore each connection has a
//! generation number. A message or last will from one connection is ignored if the same client has
//! a connection with a higher generation number. A client is disconnected when its last connection
//! is unregistered.
//!
//! The lock is held while callbacks run. Therefore the message sink receives messages and
//! disconnects in the order in which this module accepted them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;

use parking_lot::Mutex;

use super::metrics;
use super::stream_handle::StreamHandle;
use domain::{ClientId, OfflineReason};

/// Generation number of a connection. A later connection has a higher number.
pub(super) type Generation = u64;

#[derive(Default)]
pub(super) struct LiveConnections {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_generation: Generation,
    /// The current connections of each client. A client has two connections only while a new
    /// connection replaces the previous connection.
    connections_by_client: HashMap<ClientId, Vec<LiveConnection>>,
}

struct LiveConnection {
    generation: Generation,
    peer: SocketAddr,
    stream: StreamHandle,
    limits: ClientLimits,
    /// How the latest closed connection of the client ended that is newer than this connection.
    /// `None` if no newer connection has closed.
    end_of_newer_connection: Option<OfflineReason>,
}

/// Limits that a client has requested in its CONNECT packet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClientLimits {
    /// Maximum size of a packet to the client. `None` if there is no limit.
    pub max_packet_size: Option<u32>,
}

/// A registered connection.
pub(super) struct Registration {
    pub generation: Generation,
    /// The connection that the registered connection replaces.
    pub replaced: Option<ReplacedConnection>,
}

/// A connection whose client has opened another connection.
pub(super) struct ReplacedConnection {
    pub peer: SocketAddr,
    /// Whether the client had received its CONNACK packet and then used the connection.
    pub was_in_use: bool,
}

impl LiveConnections {
    /// Adds an authenticated connection.
    pub fn register(
        &self,
        client: &ClientId,
        peer: SocketAddr,
        stream: StreamHandle,
        limits: ClientLimits,
    ) -> Registration {
        let mut inner = self.inner.lock();
        inner.last_generation += 1;
        let generation = inner.last_generation;
        let connection = LiveConnection {
            generation,
            peer,
            stream,
            limits,
            end_of_newer_connection: None,
        };
        let replaced = match inner.connections_by_client.entry(client.clone()) {
            Entry::Vacant(entry) => {
                // Allocates memory for one connection. Most clients never have two.
                entry.insert(vec![connection]);
                None
            }
            Entry::Occupied(entry) => {
                let connections = entry.into_mut();
                let replaced = connections.last().map(|previous| ReplacedConnection {
                    peer: previous.peer,
                    was_in_use: previous.stream.has_packet_after_connect(),
                });
                connections.push(connection);
                replaced
            }
        };
        metrics::set_broker_connections(inner.connections_by_client.len());
        Registration {
            generation,
            replaced,
        }
    }

    /// Removes a connection that ended for `reason`. If the client has no other connection, calls
    /// `on_disconnected` with the reason for which the client's latest connection ended, and returns
    /// the result.
    pub fn unregister<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        reason: OfflineReason,
        on_disconnected: impl FnOnce(OfflineReason) -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let connections = inner.connections_by_client.get_mut(client)?;
        let index = connections
            .iter()
            .position(|connection| connection.generation == generation)?;
        let removed = connections.remove(index);
        let reason = removed.end_of_newer_connection.unwrap_or(reason);
        if !connections.is_empty() {
            // The broker may notice the end of an older connection later.
            for older in &mut connections[..index] {
                older.end_of_newer_connection = Some(reason);
            }
            return None;
        }
        inner.connections_by_client.remove(client);
        metrics::set_broker_connections(inner.connections_by_client.len());
        Some(on_disconnected(reason))
    }

    /// Runs `action` and returns its result, unless the client has a connection with a higher
    /// generation number than `generation`. The connection with the number `generation` may already
    /// be closed.
    pub fn run_unless_superseded<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        action: impl FnOnce() -> T,
    ) -> Option<T> {
        let inner = self.inner.lock();
        let connections = inner.connections_by_client.get(client);
        let is_superseded = connections.is_some_and(|connections| {
            connections
                .iter()
                .any(|other| other.generation > generation)
        });
        (!is_superseded).then(action)
    }

    /// Runs `action` and returns its result, if the client has no connection.
    pub fn run_if_not_connected<T>(
        &self,
        client: &ClientId,
        action: impl FnOnce() -> T,
    ) -> Option<T> {
        let inner = self.inner.lock();
        (!inner.connections_by_client.contains_key(client)).then(action)
    }

    /// Returns the limits of the client's latest connection. Returns `None` if the client has no
    /// connection.
    pub fn client_limits(&self, client: &ClientId) -> Option<ClientLimits> {
        let inner = self.inner.lock();
        let connections = inner.connections_by_client.get(client)?;
        connections.last().map(|connection| connection.limits)
    }

    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.inner.lock().connections_by_client.contains_key(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_client() -> ClientId {
        ClientId::new("c").unwrap()
    }

    fn register(connections: &LiveConnections) -> Generation {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let stream = StreamHandle::default();
        let limits = ClientLimits::default();
        let registration = connections.register(&test_client(), peer, stream, limits);
        registration.generation
    }

    #[test]
    fn registration_reports_the_replaced_connection() {
        let connections = LiveConnections::default();
        let peers = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let stream = StreamHandle::default();
        let register = |peer| {
            let limits = ClientLimits::default();
            let registration = connections.register(&test_client(), peer, stream.clone(), limits);
            let replaced = registration.replaced;
            replaced.map(|replaced| (replaced.peer, replaced.was_in_use))
        };
        assert_eq!(register(peers[0]), None);
        assert_eq!(register(peers[1]), Some((peers[0], false)));
        stream.set_has_packet_after_connect();
        assert_eq!(register(peers[2]), Some((peers[1], true)));
    }

    #[test]
    fn client_is_disconnected_when_its_last_connection_closes() {
        let connections = LiveConnections::default();
        let old_generation = register(&connections);
        let new_generation = register(&connections);
        assert_eq!(
            connections.unregister(&test_client(), old_generation, OfflineReason::Will, |_| ()),
            None
        );
        assert!(connections.is_connected(&test_client()));
        assert_eq!(
            connections.unregister(&test_client(), new_generation, OfflineReason::Will, |_| ()),
            Some(())
        );
        assert!(!connections.is_connected(&test_client()));
    }

    #[test]
    fn reason_is_how_the_latest_connection_ended_even_if_an_older_connection_closes_last() {
        let unregister = |connections: &LiveConnections, generation, reason| {
            connections.unregister(&test_client(), generation, reason, |reason| reason)
        };
        for reason in [OfflineReason::Client, OfflineReason::Will] {
            let connections = LiveConnections::default();
            let generations = [(); 3].map(|()| register(&connections));
            for (index, expected) in [(2, None), (1, None), (0, Some(reason))] {
                let own_reason = match index {
                    2 => reason,
                    _ => OfflineReason::BrokerRestart,
                };
                let reported = unregister(&connections, generations[index], own_reason);
                assert_eq!(reported, expected);
            }
            let generation = register(&connections);
            let reported = unregister(&connections, generation, OfflineReason::Client);
            assert_eq!(reported, Some(OfflineReason::Client));
        }
    }

    #[test]
    fn messages_of_the_older_connection_are_ignored_while_a_newer_connection_exists() {
        let connections = LiveConnections::default();
        let old_generation = register(&connections);
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            Some(())
        );
        let new_generation = register(&connections);
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            None
        );
        assert_eq!(
            connections.run_unless_superseded(&test_client(), new_generation, || ()),
            Some(())
        );
    }

    #[test]
    fn messages_of_the_older_connection_are_accepted_after_the_newer_connection_closes() {
        let connections = LiveConnections::default();
        let old_generation = register(&connections);
        let new_generation = register(&connections);
        assert_eq!(
            connections.unregister(&test_client(), new_generation, OfflineReason::Will, |_| ()),
            None
        );
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            Some(())
        );
        assert_eq!(
            connections.unregister(&test_client(), old_generation, OfflineReason::Will, |_| ()),
            Some(())
        );
    }

    #[test]
    fn last_will_of_a_closed_connection_is_accepted_unless_the_client_has_reconnected() {
        let connections = LiveConnections::default();
        let old_generation = register(&connections);
        connections.unregister(&test_client(), old_generation, OfflineReason::Will, |_| ());
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            Some(())
        );
        register(&connections);
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            None
        );
        assert_eq!(
            connections.run_if_not_connected(&test_client(), || ()),
            None
        );
    }
}
