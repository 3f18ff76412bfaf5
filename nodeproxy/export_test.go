package nodeproxy

// NamesOf is namesOf, for tests with gateways.
var NamesOf = (*Proxy).namesOf
