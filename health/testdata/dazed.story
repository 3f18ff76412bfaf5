# A single endpoint gets connections although it is out (everything else is,
# too). Failures do not lengthen its wait, and a success readmits it.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
5s begin c                           | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
5s end c failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
6s begin d                           | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable
6s end d success                     | healthy health=0.643 failures=0 ejections=1 <readmitted>
