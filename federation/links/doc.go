// Package links is what this network has agreed with others: the file of their keys
// ([File]), and what of their exports holds by it ([Admission]). Node proxies and the
// controller judge by it alike.
//
// It promises that a file that cannot be read changes nothing: what was read before is
// used, and [File.Failure] says so. Before the first reading nothing is known ([File.Unread]).
package links
