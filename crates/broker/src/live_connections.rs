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

use parking_lot::Mutex;

use super::metrics;
use domain::ClientId;

/// Generation number of a connection. A later connection has a higher number.
pub(super) type Generation = u64;

#[derive(Default)]
pub(super) struct LiveConnections {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_generation: Generation,
    /// Generation numbers of the current connections of each client. A client has two connections
    /// only while a new connection replaces the previous connection.
    generations_by_client: HashMap<ClientId, Vec<Generation>>,
}

impl LiveConnections {
    /// Adds an authenticated connection. Returns the generation number of the connection.
    pub fn register(&self, client: &ClientId) -> Generation {
        let mut inner = self.inner.lock();
        inner.last_generation += 1;
        let generation = inner.last_generation;
        inner
            .generations_by_client
            .entry(client.clone())
            .or_default()
            .push(generation);
        metrics::set_broker_connections(inner.generations_by_client.len());
        generation
    }

    /// Removes a connection. If the client has no other connection, calls `on_disconnected` and
    /// returns its result.
    pub fn unregister<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        on_disconnected: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let generations = inner.generations_by_client.get_mut(client)?;
        let count_before = generations.len();
        generations.retain(|other| *other != generation);
        if !generations.is_empty() || generations.len() == count_before {
            return None;
        }
        inner.generations_by_client.remove(client);
        metrics::set_broker_connections(inner.generations_by_client.len());
        Some(on_disconnected())
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
        let is_superseded = inner
            .generations_by_client
            .get(client)
            .is_some_and(|generations| generations.iter().any(|other| *other > generation));
        (!is_superseded).then(action)
    }

    /// Runs `action` and returns its result, if the client has no connection.
    pub fn run_if_not_connected<T>(
        &self,
        client: &ClientId,
        action: impl FnOnce() -> T,
    ) -> Option<T> {
        let inner = self.inner.lock();
        (!inner.generations_by_client.contains_key(client)).then(action)
    }

    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.inner.lock().generations_by_client.contains_key(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_client() -> ClientId {
        ClientId::new("c").unwrap()
    }

    #[test]
    fn client_is_disconnected_when_its_last_connection_closes() {
        let connections = LiveConnections::default();
        let old_generation = connections.register(&test_client());
        let new_generation = connections.register(&test_client());
        assert_eq!(
            connections.unregister(&test_client(), old_generation, || ()),
            None
        );
        assert!(connections.is_connected(&test_client()));
        assert_eq!(
            connections.unregister(&test_client(), new_generation, || ()),
            Some(())
        );
        assert!(!connections.is_connected(&test_client()));
    }

    #[test]
    fn messages_of_the_older_connection_are_ignored_while_a_newer_connection_exists() {
        let connections = LiveConnections::default();
        let old_generation = connections.register(&test_client());
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            Some(())
        );
        let new_generation = connections.register(&test_client());
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
        let old_generation = connections.register(&test_client());
        let new_generation = connections.register(&test_client());
        assert_eq!(
            connections.unregister(&test_client(), new_generation, || ()),
            None
        );
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            Some(())
        );
        assert_eq!(
            connections.unregister(&test_client(), old_generation, || ()),
            Some(())
        );
    }

    #[test]
    fn last_will_of_a_closed_connection_is_accepted_unless_the_client_has_reconnected() {
        let connections = LiveConnections::default();
        let old_generation = connections.register(&test_client());
        connections.unregister(&test_client(), old_generation, || ());
        assert_eq!(
            connections.run_unless_superseded(&test_client(), old_generation, || ()),
            Some(())
        );
        connections.register(&test_client());
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
