//! Description of an invalid value, and checks that several components need.

use super::HumanDuration;

/// A value that has the right type but is not allowed. The configuration adds the origin of the
/// value to the error message.
#[derive(Debug)]
pub struct InvalidValue {
    /// Name of the setting, such as `http.listen`. If the user chose the last part of the name,
    /// this is the name of the table, such as `api.keys`.
    pub setting_name: &'static str,
    /// The part of the name that the user chose, such as `<caller>` in `api.keys.<caller>`.
    pub user_chosen_name: Option<String>,
    /// Why the value is not allowed.
    pub problem: String,
    /// How to fix the value.
    pub hint: String,
}

impl InvalidValue {
    /// Creates the description of an invalid value. The user did not choose a part of the setting's
    /// name.
    #[must_use]
    pub fn new(
        setting_name: &'static str,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self {
            setting_name,
            user_chosen_name: None,
            problem: problem.into(),
            hint: hint.into(),
        }
    }

    /// Sets the part of the setting's name that the user chose.
    #[must_use]
    pub fn with_user_chosen_name(mut self, name: &str) -> Self {
        self.user_chosen_name = Some(name.to_owned());
        self
    }

    /// Returns the full name of the setting, such as `http.listen`.
    #[must_use]
    pub fn full_name(&self) -> String {
        match &self.user_chosen_name {
            Some(name) => format!("{}.{name}", self.setting_name),
            None => self.setting_name.to_owned(),
        }
    }
}

/// Checks that a duration is not zero.
///
/// # Errors
/// When the duration is zero.
pub fn require_nonzero_duration(
    setting_name: &'static str,
    duration: HumanDuration,
) -> Result<(), InvalidValue> {
    if duration.get().is_zero() {
        return Err(InvalidValue::new(
            setting_name,
            "the duration must not be zero",
            "set a longer duration, such as \"10s\"",
        ));
    }
    Ok(())
}

/// Checks that a limit on the number of connections is not zero.
///
/// # Errors
/// When the limit is zero.
pub fn require_nonzero_connection_limit(
    setting_name: &'static str,
    limit: usize,
) -> Result<(), InvalidValue> {
    if limit == 0 {
        return Err(InvalidValue::new(
            setting_name,
            "0 would reject all connections",
            "set it to 1 or more",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_zero_duration_is_rejected() {
        let invalid =
            require_nonzero_duration("updaters.interval", Duration::ZERO.into()).unwrap_err();
        assert_eq!(invalid.full_name(), "updaters.interval");
        assert!(require_nonzero_duration("x", Duration::from_millis(1).into()).is_ok());
    }

    #[test]
    fn a_zero_connection_limit_is_rejected() {
        let invalid = require_nonzero_connection_limit("broker.max_connections", 0).unwrap_err();
        assert_eq!(invalid.full_name(), "broker.max_connections");
        assert!(require_nonzero_connection_limit("x", 1).is_ok());
    }

    #[test]
    fn the_full_name_contains_the_name_that_the_user_chose() {
        let invalid = InvalidValue::new("api.keys", "p", "h").with_user_chosen_name("caller");
        assert_eq!(invalid.full_name(), "api.keys.caller");
    }
}
