//! Which connections each client holds now.
//!
//! A client that reconnects is often accepted before its old connection is noticed to be dead, and
//! then the old one's will comes last. So every connection has a generation, and a will counts only
//! while no newer connection of that client is alive. The client is gone when the last one ends.
//!
//! Decisions are made and handed on under one lock: what the intake is told is in the order in
//! which it happened.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::domain::ClientId;
use crate::telemetry::metrics;

/// Tells connections of one client apart: a later one is larger.
pub(super) type Generation = u64;

#[derive(Default)]
pub(super) struct LiveConnections {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    latest: Generation,
    /// Almost always one; two for the moment of a takeover.
    alive: HashMap<ClientId, Vec<Generation>>,
}

impl LiveConnections {
    /// A connection of the client was authenticated.
    pub fn enter(&self, client: &ClientId) -> Generation {
        let mut inner = self.inner.lock();
        inner.latest += 1;
        let generation = inner.latest;
        inner
            .alive
            .entry(client.clone())
            .or_default()
            .push(generation);
        metrics::links(inner.alive.len());
        generation
    }

    /// A connection ended. Calls `gone` if it was the client's last.
    pub fn leave<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        gone: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        let alive = inner.alive.get_mut(client)?;
        let before = alive.len();
        alive.retain(|other| *other != generation);
        if !alive.is_empty() || alive.len() == before {
            return None;
        }
        inner.alive.remove(client);
        metrics::links(inner.alive.len());
        Some(gone())
    }

    /// Calls `act` unless the client has a newer connection than this one.
    pub fn if_newest<T>(
        &self,
        client: &ClientId,
        generation: Generation,
        act: impl FnOnce() -> T,
    ) -> Option<T> {
        let inner = self.inner.lock();
        let superseded = inner
            .alive
            .get(client)
            .is_some_and(|alive| alive.iter().any(|other| *other > generation));
        (!superseded).then(act)
    }

    /// Calls `act` if the client has no connection at all.
    pub fn if_not_connected<T>(&self, client: &ClientId, act: impl FnOnce() -> T) -> Option<T> {
        let inner = self.inner.lock();
        (!inner.alive.contains_key(client)).then(act)
    }

    pub fn is_connected(&self, client: &ClientId) -> bool {
        self.inner.lock().alive.contains_key(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> ClientId {
        ClientId::new("c").unwrap()
    }

    #[test]
    fn the_client_is_gone_when_its_last_connection_ends() {
        let presence = LiveConnections::default();
        let old = presence.enter(&client());
        let new = presence.enter(&client());
        assert_eq!(presence.leave(&client(), old, || ()), None);
        assert!(presence.is_connected(&client()));
        assert_eq!(presence.leave(&client(), new, || ()), Some(()));
        assert!(!presence.is_connected(&client()));
    }

    #[test]
    fn a_will_counts_only_while_no_newer_connection_is_alive() {
        let presence = LiveConnections::default();
        let old = presence.enter(&client());
        assert_eq!(presence.if_newest(&client(), old, || ()), Some(()));
        let new = presence.enter(&client());
        assert_eq!(presence.if_newest(&client(), old, || ()), None);
        assert_eq!(presence.if_newest(&client(), new, || ()), Some(()));
    }

    #[test]
    fn a_newcomer_that_fails_leaves_the_old_connection_in_charge() {
        let presence = LiveConnections::default();
        let old = presence.enter(&client());
        let failed = presence.enter(&client());
        assert_eq!(presence.leave(&client(), failed, || ()), None);
        assert_eq!(presence.if_newest(&client(), old, || ()), Some(()));
        assert_eq!(presence.leave(&client(), old, || ()), Some(()));
    }

    #[test]
    fn a_delayed_will_counts_unless_the_client_came_back() {
        let presence = LiveConnections::default();
        let old = presence.enter(&client());
        presence.leave(&client(), old, || ());
        assert_eq!(presence.if_newest(&client(), old, || ()), Some(()));
        presence.enter(&client());
        assert_eq!(presence.if_newest(&client(), old, || ()), None);
        assert_eq!(presence.if_not_connected(&client(), || ()), None);
    }
}
