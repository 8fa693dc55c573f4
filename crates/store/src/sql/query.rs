//! Statements and their parameters, independent of the database driver.

use std::borrow::Cow;

use domain::{ClientId, OrgId, Timestamp};

/// A statement of a list of statements. Tests prepare all statements of a list on the migrated
/// schema.
///
/// Only the macro [`statements!`](crate::statements) and
/// [`SharedStatements`](crate::sql::SharedStatements) create statements, so a statement cannot be
/// missing in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement(&'static str);

impl Statement {
    /// Creates a statement of a list. Call the macro [`statements!`](crate::statements) instead.
    #[doc(hidden)]
    #[must_use]
    pub const fn in_list(sql: &'static str) -> Self {
        Self(sql)
    }

    /// Returns the text of the statement.
    #[must_use]
    pub const fn sql(self) -> &'static str {
        self.0
    }

    /// Combines the statement with the values of its parameters `$1`, `$2`, ….
    #[must_use]
    pub fn with<const N: usize>(self, parameters: [Parameter<'_>; N]) -> Query<'_> {
        Query {
            sql: Cow::Borrowed(self.0),
            parameters: parameters.into(),
            is_cached: true,
        }
    }
}

/// Declares the statements of a module as constants, and the list `STATEMENTS` with the name and
/// the text of each statement.
#[macro_export]
macro_rules! statements {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident = $sql:expr;)*) => {
        $(
            $(#[$attribute])*
            $visibility const $name: $crate::sql::Statement =
                $crate::sql::Statement::in_list($sql);
        )*

        /// The name and the text of each statement of this module.
        pub(crate) const STATEMENTS: &[(&str, &str)] = &[$((stringify!($name), $name.sql())),*];
    };
}

/// Value of a parameter. Each backend converts the value to a type of its database.
#[derive(Debug, Clone)]
pub enum Parameter<'a> {
    /// A text or null.
    Text(Option<Cow<'a, str>>),
    /// A list of texts, for a condition with [`SqlSyntax::is_listed`](crate::sql::SqlSyntax).
    TextList(Vec<&'a str>),
    /// A whole number or null.
    Integer(Option<i64>),
    /// A time or null.
    Timestamp(Option<Timestamp>),
}

impl<'a> From<&'a str> for Parameter<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(text.into()))
    }
}

impl<'a> From<Option<&'a str>> for Parameter<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text.map(Cow::from))
    }
}

impl From<String> for Parameter<'_> {
    fn from(text: String) -> Self {
        Self::Text(Some(text.into()))
    }
}

impl<'a> From<&'a ClientId> for Parameter<'a> {
    fn from(client: &'a ClientId) -> Self {
        client.as_str().into()
    }
}

impl<'a> From<&'a OrgId> for Parameter<'a> {
    fn from(org: &'a OrgId) -> Self {
        org.as_str().into()
    }
}

impl<'a> From<&'a [ClientId]> for Parameter<'a> {
    fn from(clients: &'a [ClientId]) -> Self {
        Self::TextList(clients.iter().map(ClientId::as_str).collect())
    }
}

impl From<Timestamp> for Parameter<'_> {
    fn from(time: Timestamp) -> Self {
        Self::Timestamp(Some(time))
    }
}

impl From<Option<Timestamp>> for Parameter<'_> {
    fn from(time: Option<Timestamp>) -> Self {
        Self::Timestamp(time)
    }
}

impl From<i64> for Parameter<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(Some(number))
    }
}

impl From<Option<i64>> for Parameter<'_> {
    fn from(number: Option<i64>) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for Parameter<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(Some(number.into()))
    }
}

impl From<u64> for Parameter<'_> {
    /// The databases have no unsigned numbers. A larger number becomes the largest signed number.
    fn from(number: u64) -> Self {
        Self::Integer(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

/// A statement with the values of its parameters.
#[derive(Debug, Clone)]
pub struct Query<'a> {
    sql: Cow<'static, str>,
    parameters: Vec<Parameter<'a>>,
    is_cached: bool,
}

impl<'a> Query<'a> {
    /// Starts a query whose text depends on its conditions. Append the rest of the text with
    /// [`Query::push`] and [`Query::push_with`].
    #[must_use]
    pub fn dynamic(sql: impl Into<Cow<'static, str>>) -> Self {
        Self {
            sql: sql.into(),
            parameters: Vec::new(),
            is_cached: true,
        }
    }

    /// Appends text. The text must not contain a value that a client or a caller sent.
    pub fn push(&mut self, sql: &str) -> &mut Self {
        self.sql.to_mut().push_str(sql);
        self
    }

    /// Appends text and, after it, a parameter.
    pub fn push_with(&mut self, sql: &str, parameter: impl Into<Parameter<'a>>) -> &mut Self {
        self.parameters.push(parameter.into());
        let placeholder = format!("${}", self.parameters.len());
        self.push(sql).push(&placeholder)
    }

    /// Runs the query without caching its plan, because its text or the best plan varies.
    #[must_use]
    pub fn without_cache(mut self) -> Self {
        self.is_cached = false;
        self
    }

    /// Returns the text of the query. The parameters are `$1`, `$2`, ….
    #[must_use]
    pub fn sql(&self) -> &Cow<'static, str> {
        &self.sql
    }

    /// Returns the values of the parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter<'a>] {
        &self.parameters
    }

    /// Returns whether the driver should cache the prepared statement.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.is_cached
    }
}
