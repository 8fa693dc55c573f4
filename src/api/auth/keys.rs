//! Pre-shared keys: by caller, with what they open.

use std::collections::HashMap;

use subtle::{Choice, ConstantTimeEq as _};

use crate::config::{Scope, Secret};

/// Pre-shared keys, by caller.
#[derive(Debug, Clone, Default)]
pub struct Keys(HashMap<String, Key>);

#[derive(Debug, Clone)]
struct Key {
    secrets: Vec<Secret>,
    scopes: Vec<Scope>,
}

impl Keys {
    /// Lets a caller in with any of these secrets, for what these scopes say.
    pub fn add(&mut self, caller: impl Into<String>, secrets: Vec<Secret>, scopes: Vec<Scope>) {
        self.0.insert(caller.into(), Key { secrets, scopes });
    }

    /// Compares in constant time, and with every secret that the caller has, so that the time
    /// taken says nothing about how much of a secret was right.
    pub(super) fn opens(&self, caller: &str, secret: &str, scope: Scope) -> bool {
        let Some(key) = self.0.get(caller) else {
            return false;
        };
        let mut right = Choice::from(0);
        for candidate in &key.secrets {
            right |= candidate.expose().as_bytes().ct_eq(secret.as_bytes());
        }
        bool::from(right) && key.scopes.contains(&scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_let_in_with_any_of_its_own_secrets_and_no_other() {
        let mut keys = Keys::default();
        let tenant = vec![Scope::Tenant];
        let secrets = vec![Secret::new("new"), Secret::new("old")];
        keys.add("a", secrets, tenant.clone());
        keys.add("b", vec![Secret::new("other")], tenant);
        assert!(keys.opens("a", "new", Scope::Tenant));
        assert!(keys.opens("a", "old", Scope::Tenant));
        for (caller, secret) in [
            ("a", "other"),
            ("a", ""),
            ("b", "new"),
            ("c", "new"),
            ("", ""),
        ] {
            assert!(
                !keys.opens(caller, secret, Scope::Tenant),
                "{caller} {secret}"
            );
        }
    }

    #[test]
    fn a_key_opens_what_its_scopes_say() {
        let mut keys = Keys::default();
        keys.add("a", vec![Secret::new("x")], vec![Scope::Management]);
        assert!(keys.opens("a", "x", Scope::Management));
        assert!(!keys.opens("a", "x", Scope::Tenant));
    }
}
