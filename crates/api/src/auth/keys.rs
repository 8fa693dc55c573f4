//! Pre-shared keys that authenticate callers.

use std::collections::HashMap;

use subtle::{Choice, ConstantTimeEq as _};

use super::failures::FailureReason;
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

    /// Checks that the secret is valid for the key, and that the key has the scope.
    ///
    /// Compares `secret` with every secret of the key in constant time. Therefore the duration of
    /// the comparison does not reveal how many characters of the secret are correct.
    pub(super) fn check(
        &self,
        key_name: &str,
        secret: &str,
        scope: Scope,
    ) -> Result<(), FailureReason> {
        let key = self.0.get(key_name).ok_or(FailureReason::UnknownCaller)?;
        let mut is_valid_secret = Choice::from(0);
        for valid_secret in &key.secrets {
            let valid_secret = valid_secret.expose_secret().as_bytes();
            is_valid_secret |= valid_secret.ct_eq(secret.as_bytes());
        }
        if !bool::from(is_valid_secret) {
            return Err(FailureReason::WrongSecret);
        }
        if !key.scopes.contains(&scope) {
            return Err(FailureReason::MissingScope);
        }
        Ok(())
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
        assert_eq!(keys.check("a", "new", Scope::Tenant), Ok(()));
        assert_eq!(keys.check("a", "old", Scope::Tenant), Ok(()));
        for (name, secret, reason) in [
            ("a", "other", FailureReason::WrongSecret),
            ("a", "", FailureReason::WrongSecret),
            ("b", "new", FailureReason::WrongSecret),
            ("c", "new", FailureReason::UnknownCaller),
            ("", "", FailureReason::UnknownCaller),
        ] {
            let result = keys.check(name, secret, Scope::Tenant);
            assert_eq!(result, Err(reason), "{name} {secret}");
        }
    }

    #[test]
    fn a_key_authorizes_only_its_scopes() {
        let mut keys = Keys::default();
        keys.add("a", vec![SecretString::from("x")], vec![Scope::Management]);
        assert_eq!(keys.check("a", "x", Scope::Management), Ok(()));
        let result = keys.check("a", "x", Scope::Tenant);
        assert_eq!(result, Err(FailureReason::MissingScope));
        let result = keys.check("a", "y", Scope::Tenant);
        assert_eq!(result, Err(FailureReason::WrongSecret));
    }
}
