//! The connections that each client currently has.
//!
//! A reconnecting client is often accepted before the broker detects that its previous connection
//! is dead. The last will of the previous connection is then published after the new connection was
//! registered. To detect this, each connection has a generation number: a message or last will is
//! ignored if its client has a live connection with a higher generation. A client is disconnected
//! when its last connection is unregistered.
//!
//! Callbacks run while the lock is held. Therefore the message sink receives messages and
//! disconnects in the order in which this module accepted them.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::domain::ClientId;
use crate::telemetry::metrics;

/// Orders the connections of a client: a later connection has a higher number.
pub(super) type Generation = u64;

#[derive(Default)]
pub(super) struct LiveConnections {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    last_generation: Generation,
    /// A client has two connections only during a takeover.
    by_client: HashMap<ClientId, Vec<Generation>>,
}

impl LiveConnections {
    /// Adds an authenticated connection.
    pub fn register(&self, client: &ClientId) -> Generation {
        let mut inner = self.inner.lock();
        inner.last_generation += 1;
        let generation = inner.last_generation;
        inner
            .by_client
            .entry(client.clone())
            .or_default()
            .push(generation);
        metrics::set_broker_connections(inner.by_client.len());
        generation
    }

    /// Removes a connection. Calls `on_disconnected` if it was the client's last connection.
    pub fn unregister<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        on_disconnected: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let generations = inner.by_client.get_mut(client)?;
        let count_before = generations.len();
        generations.retain(|other| *other != generation);
        if !generations.is_empty() || generations.len() == count_before {
            return None;
        }
        inner.by_client.remove(client);
        metrics::set_broker_connections(inner.by_client.len());
        Some(on_disconnected())
    }

    /// Calls `action` unless the client has a newer connection than this one. The connection itself
    /// may already be closed.
    pub fn unless_superseded<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        action: impl FnOnce() -> T,
    ) -> Option<T> {
        let inner = self.inner.lock();
        let superseded = inner
            .by_client
            .get(client)
            .is_some_and(|generations| generations.iter().any(|other| *other > generation));
        (!superseded).then(action)
    }

    /// Calls `action` if the client has no connection.
    pub fn if_not_connected<T>(&self, client: &ClientId, action: impl FnOnce() -> T) -> Option<T> {
        let inner = self.inner.lock();
        (!inner.by_client.contains_key(client)).then(action)
    }

    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.inner.lock().by_client.contains_key(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> ClientId {
        ClientId::new("c").unwrap()
    }

    #[test]
    fn client_is_disconnected_when_its_last_connection_closes() {
        let connections = LiveConnections::default();
        let old = connections.register(&client());
        let new = connections.register(&client());
        assert_eq!(connections.unregister(&client(), old, || ()), None);
        assert!(connections.is_connected(&client()));
        assert_eq!(connections.unregister(&client(), new, || ()), Some(()));
        assert!(!connections.is_connected(&client()));
    }

    #[test]
    fn newer_connection_supersedes_the_older_one() {
        let connections = LiveConnections::default();
        let old = connections.register(&client());
        assert_eq!(
            connections.unless_superseded(&client(), old, || ()),
            Some(())
        );
        let new = connections.register(&client());
        assert_eq!(connections.unless_superseded(&client(), old, || ()), None);
        assert_eq!(
            connections.unless_superseded(&client(), new, || ()),
            Some(())
        );
    }

    #[test]
    fn older_connection_is_current_again_after_the_newer_one_fails() {
        let connections = LiveConnections::default();
        let old = connections.register(&client());
        let failed = connections.register(&client());
        assert_eq!(connections.unregister(&client(), failed, || ()), None);
        assert_eq!(
            connections.unless_superseded(&client(), old, || ()),
            Some(())
        );
        assert_eq!(connections.unregister(&client(), old, || ()), Some(()));
    }

    #[test]
    fn delayed_will_is_accepted_unless_the_client_reconnected() {
        let connections = LiveConnections::default();
        let old = connections.register(&client());
        connections.unregister(&client(), old, || ());
        assert_eq!(
            connections.unless_superseded(&client(), old, || ()),
            Some(())
        );
        connections.register(&client());
        assert_eq!(connections.unless_superseded(&client(), old, || ()), None);
        assert_eq!(connections.if_not_connected(&client(), || ()), None);
    }
}
