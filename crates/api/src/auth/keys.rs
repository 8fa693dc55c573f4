//! Pre-shared keys that authenticate callers.

use std::collections::HashMap;

use subtle::{Choice, ConstantTimeEq as _};

use crate::Scope;
use service::settings::{ExposeSecret as _, SecretString};

/// All pre-shared keys, by key name.
#[derive(Debug, Clone, Default)]
pub struct Keys(HashMap<String, Key>);

#[derive(Debug, Clone)]
struct Key {
    /// The valid secrets of the key. A key has two valid secrets while an operator replaces the old
    /// secret with a new secret.
    secrets: Vec<SecretString>,
    scopes: Vec<Scope>,
}

impl Keys {
    /// Adds a key, or replaces the key with the same name.
    pub fn add(
        &mut self,
        key_name: impl Into<String>,
        secrets: Vec<SecretString>,
        scopes: Vec<Scope>,
    ) {
        self.0.insert(key_name.into(), Key { secrets, scopes });
    }

    /// Returns true if the secret is valid for the key, and the key has the scope.
    ///
    /// Compares `secret` with every secret of the key in constant time. Therefore the duration of
    /// the comparison does not reveal how many characters of the secret are correct.
    pub(super) fn authorizes(&self, key_name: &str, secret: &str, scope: Scope) -> bool {
        let Some(key) = self.0.get(key_name) else {
            return false;
        };
        let mut is_valid_secret = Choice::from(0);
        for valid_secret in &key.secrets {
            let valid_secret = valid_secret.expose_secret().as_bytes();
            is_valid_secret |= valid_secret.ct_eq(secret.as_bytes());
        }
        bool::from(is_valid_secret) && key.scopes.contains(&scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_accepts_each_of_its_own_secrets_and_no_other_secret() {
        let mut keys = Keys::default();
        let scopes = vec![Scope::Tenant];
        let secrets = vec![SecretString::from("new"), SecretString::from("old")];
        keys.add("a", secrets, scopes.clone());
        keys.add("b", vec![SecretString::from("other")], scopes);
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
        keys.add("a", vec![SecretString::from("x")], vec![Scope::Management]);
        assert!(keys.authorizes("a", "x", Scope::Management));
        assert!(!keys.authorizes("a", "x", Scope::Tenant));
    }
}
