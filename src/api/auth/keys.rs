//! Pre-shared keys of callers.

use std::collections::HashMap;

use subtle::{Choice, ConstantTimeEq as _};

use crate::config::{Scope, Secret};

/// All pre-shared keys, by key name.
#[derive(Debug, Clone, Default)]
pub struct Keys(HashMap<String, Key>);

#[derive(Debug, Clone)]
struct Key {
    /// Any of these secrets is valid. A key has two of them during rotation.
    secrets: Vec<Secret>,
    scopes: Vec<Scope>,
}

impl Keys {
    /// Adds a key, or replaces the key with the same name.
    pub fn add(&mut self, name: impl Into<String>, secrets: Vec<Secret>, scopes: Vec<Scope>) {
        self.0.insert(name.into(), Key { secrets, scopes });
    }

    /// Whether the secret is valid for the key and the key has the scope.
    ///
    /// Compares with every secret of the key in constant time, so the duration does not reveal how
    /// much of a secret was right.
    pub(super) fn authorizes(&self, name: &str, secret: &str, scope: Scope) -> bool {
        let Some(key) = self.0.get(name) else {
            return false;
        };
        let mut is_valid = Choice::from(0);
        for candidate in &key.secrets {
            is_valid |= candidate.expose().as_bytes().ct_eq(secret.as_bytes());
        }
        bool::from(is_valid) && key.scopes.contains(&scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_accepts_each_of_its_own_secrets_and_no_other() {
        let mut keys = Keys::default();
        let scopes = vec![Scope::Tenant];
        let secrets = vec![Secret::new("new"), Secret::new("old")];
        keys.add("a", secrets, scopes.clone());
        keys.add("b", vec![Secret::new("other")], scopes);
        assert!(keys.authorizes("a", "new", Scope::Tenant));
        assert!(keys.authorizes("a", "old", Scope::Tenant));
        for (name, secret) in [
            ("a", "other"),
            ("a", ""),
            ("b", "new"),
            ("c", "new"),
            ("", ""),
        ] {
            let is_authorized = keys.authorizes(name, secret, Scope::Tenant);
            assert!(!is_authorized, "{name} {secret}");
        }
    }

    #[test]
    fn a_key_authorizes_only_its_scopes() {
        let mut keys = Keys::default();
        keys.add("a", vec![Secret::new("x")], vec![Scope::Management]);
        assert!(keys.authorizes("a", "x", Scope::Management));
        assert!(!keys.authorizes("a", "x", Scope::Tenant));
    }
}
