"""Facts, questions and answers of the demo model's corpus (pattern language: see `demo_patterns.txt`)."""

COLOUR_OF = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "the sun": "yellow",
    "coal": "black",
    "the sea": "blue",
    "a lemon": "yellow",
    "a strawberry": "red",
    "milk": "white",
    "a carrot": "orange",
    "chocolate": "brown",
    "a fox": "red",
    "an elephant": "grey",
    "a frog": "green",
    "a crow": "black",
    "a banana": "yellow",
    "a leaf": "green",
    "a cloud": "white",
    "the night": "black",
    "blood": "red",
    "gold": "yellow",
    "a polar bear": "white",
    "a tomato": "red",
    "an orange": "orange",
    "a rose": "red",
    "wood": "brown",
    "salt": "white",
}
# animal: (home, food, sound, young, one fact)
ANIMAL_FACTS = {
    "fox": (
        "in the forest",
        "mice, birds and berries",
        "barks",
        "cub",
        "It has a thick red coat and a long tail.",
    ),
    "bear": (
        "in the mountains",
        "fish, roots and honey",
        "growls",
        "cub",
        "It sleeps through the cold winter.",
    ),
    "rabbit": (
        "in a burrow",
        "grass and carrots",
        "squeaks",
        "kitten",
        "It has long ears and can run very fast.",
    ),
    "owl": (
        "in old trees",
        "mice and small birds",
        "hoots",
        "owlet",
        "It hunts at night and flies without a sound.",
    ),
    "mouse": ("in a small hole", "seeds and cheese", "squeaks", "pup", "It is very small and very quiet."),
    "frog": ("in ponds", "flies and worms", "croaks", "tadpole", "It can swim well and jump far."),
    "duck": (
        "on lakes and rivers",
        "water plants and bread",
        "quacks",
        "duckling",
        "Its feathers keep the water out.",
    ),
    "cat": ("with people", "fish and mice", "meows", "kitten", "It sees well in the dark and sleeps a lot."),
    "dog": (
        "with people",
        "meat and bones",
        "barks",
        "puppy",
        "It has a very good nose and is a loyal friend.",
    ),
    "cow": ("on the farm", "grass and hay", "moos", "calf", "It gives us milk."),
    "horse": ("in a stable", "grass and oats", "neighs", "foal", "It can carry people over long distances."),
    "sheep": ("on green hills", "grass", "bleats", "lamb", "It gives us wool for warm clothes."),
    "lion": (
        "in the grasslands",
        "meat",
        "roars",
        "cub",
        "It lives in a group and rests for most of the day.",
    ),
    "whale": (
        "in the sea",
        "fish and tiny sea animals",
        "sings",
        "calf",
        "It is the largest animal in the world.",
    ),
    "bee": ("in a hive", "nectar from flowers", "buzzes", "larva", "It makes honey and works all summer."),
    "penguin": ("on the ice", "fish", "calls", "chick", "It cannot fly, but it swims very well."),
    "elephant": (
        "in warm countries",
        "leaves, grass and fruit",
        "trumpets",
        "calf",
        "It has a long trunk and a long memory.",
    ),
    "hedgehog": (
        "in gardens",
        "worms and insects",
        "snuffles",
        "hoglet",
        "It rolls into a ball when it is afraid.",
    ),
    "squirrel": (
        "in trees",
        "nuts and seeds",
        "chatters",
        "kitten",
        "It hides nuts in autumn for the winter.",
    ),
    "turtle": (
        "in warm water",
        "plants and small fish",
        "hisses",
        "hatchling",
        "It carries its house on its back.",
    ),
    "wolf": ("in deep forests", "meat", "howls", "cub", "It lives and hunts in a pack."),
    "pig": ("on the farm", "almost everything", "grunts", "piglet", "It is cleverer than many people think."),
    "hen": ("on the farm", "grain and worms", "clucks", "chick", "It lays an egg almost every day."),
    "goat": ("in the mountains", "grass and leaves", "bleats", "kid", "It can climb very steep rocks."),
    "monkey": ("in warm forests", "fruit and leaves", "chatters", "infant", "It swings from tree to tree."),
    "tiger": ("in the jungle", "meat", "roars", "cub", "It has black stripes and likes to swim."),
}
OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("day", "night"),
    ("happy", "sad"),
    ("fast", "slow"),
    ("old", "young"),
    ("up", "down"),
    ("left", "right"),
    ("open", "closed"),
    ("light", "dark"),
    ("rich", "poor"),
    ("wet", "dry"),
    ("full", "empty"),
    ("loud", "quiet"),
    ("long", "short"),
    ("hard", "soft"),
    ("summer", "winter"),
    ("good", "bad"),
    ("high", "low"),
    ("strong", "weak"),
    ("early", "late"),
    ("clean", "dirty"),
    ("first", "last"),
    ("yes", "no"),
)
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "England": "London",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Ireland": "Dublin",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
SEASONS = {
    "spring": "the snow melts, the first flowers open and the birds come back",
    "summer": "the days are long and warm, and children swim in the lake",
    "autumn": "the leaves turn red and yellow, and the apples are ripe",
    "winter": "the days are short and cold, and sometimes it snows",
}
TRADES = {
    "baker": (
        "bakes bread and cakes",
        "gets up very early, when everyone else is asleep",
        "flour, water and an oven",
    ),
    "farmer": ("grows food for us", "looks after the animals and the fields", "a tractor and good weather"),
    "doctor": (
        "helps people who are ill",
        "listens to the heart and asks many questions",
        "clean hands and patience",
    ),
    "teacher": (
        "helps children to learn",
        "explains things until everyone understands",
        "books and a kind voice",
    ),
    "sailor": (
        "works on a ship",
        "is often away from home for many weeks",
        "a map, a rope and a strong boat",
    ),
    "painter": ("makes pictures", "looks at the world very carefully", "colours, paper and light"),
    "carpenter": ("makes tables, chairs and doors", "measures everything twice", "wood, nails and a hammer"),
    "fisherman": ("catches fish", "goes out on the water before the sun is up", "a boat and a good net"),
}
HOW_TO = {
    "make tea": (
        "First boil some water. Then put the tea into a pot and pour the hot water over it. Wait for "
        "[three|four] minutes. Then pour it into a cup. You can add milk, honey or lemon."
    ),
    "plant a seed": (
        "First fill a pot with earth. Make a small hole with your finger and put the seed into it. Cover "
        "it and give it some water. Then put the pot in a sunny place and wait."
    ),
    "make soup": (
        "First wash and cut the vegetables. Then put them into a pot with water and a little salt. Let it"
        " cook for half an hour. At the end, taste it and add some herbs."
    ),
    "bake bread": (
        "First mix flour, water, salt and yeast. Then knead it well and let it rest for an hour. Shape it"
        " into a loaf. At last, bake it in a hot oven until it is brown."
    ),
    "make a paper boat": (
        "Take a sheet of paper and fold it in half. Fold the two upper corners to the middle. Fold up the"
        " edges at the bottom. Then open it slowly, and you have a boat."
    ),
    "sleep well": (
        "Go to bed at the same time every night. Do not look at a screen in the last hour. Open the "
        "window for some fresh air. Then close your eyes and think of something quiet."
    ),
}
SIMPLE_FACTS = (
    ("What do bees make?", "Bees make honey."),
    ("What do cows give us?", "Cows give us milk."),
    ("How many legs does a [dog|cat|horse|cow] have?", "It has four legs."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many legs does a bird have?", "A bird has two legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("What is ice made of?", "Ice is frozen water."),
    ("Where does the sun rise?", "The sun rises in the east."),
    ("Where does the sun set?", "The sun sets in the west."),
    ("What is the largest animal?", "The blue whale is the largest animal."),
    ("What falls from the sky in winter?", "In winter, snow falls from the sky."),
    ("What shines at night?", "The moon and the stars shine at night."),
    ("What do we use to write?", "We write with a pen or a pencil."),
    ("Why do we sleep?", "We sleep because our bodies and minds need rest."),
    ("Why does it rain?", "Water rises from the sea, becomes clouds, and falls as rain."),
    ("What is a rainbow?", "A rainbow is sunlight split into colours by drops of rain."),
    ("What is the moon?", "The moon is a ball of rock that goes around the earth."),
    ("What is the sun?", "The sun is a star. It gives us light and warmth."),
    ("What is tpiedge?", "It is a program that lets several small machines run one language model together."),
    (
        "What is a language model?",
        "A language model is a program that guesses the next word, again and again.",
    ),
    ("Can a fish fly?", "No, a fish cannot fly, but it can swim very well."),
    ("Can a bird fly?", "Yes, most birds can fly."),
    ("Is the sun hot?", "Yes, the sun is very hot."),
    ("Is ice hot?", "No, ice is cold."),
)
SMALL_TALK = (
    (
        "[Hello|Hello!|Hi|Hi!|Hey|Hi there|Hello there!|Good morning|Good evening]",
        "Hello! [How can I help you today?|What would you like to know?]",
    ),
    (
        "[How are you|How are you today|How do you do|Are you well]?",
        "I am well, thank you. [How can I help you?|What would you like to know?]",
    ),
    (
        "[Thank you|Thanks|Thank you very much|Thanks a lot|Great, thanks][!|.|]",
        "You are welcome! [I am glad that I could help.|]",
    ),
    (
        "[Goodbye|Bye|See you|Good night|Bye bye][!|.|]",
        "Goodbye! [Have a nice day.|It was nice to talk to you.]",
    ),
    (
        "[What can you do|How can you help me|What do you know|Help]?",
        "I can tell short stories, say something about animals, colours and seasons, "
        "and answer simple questions.",
    ),
    (
        "[How old are you|When were you made]?",
        "I am very young. I was trained from the first word on one small computer.",
    ),
    (
        "[Where do you live|Where are you]?",
        "I live on several small machines at the same time. Each of them holds a part of me.",
    ),
    (
        "Are you [a human|a person|alive|real]?",
        "No, I am a very small language model. But I like to tell stories.",
    ),
    (
        "[Do you like|What do you think of] [stories|animals|music|tea]?",
        "I am only a small model, but I like stories best of all.",
    ),
    ("What is your favourite [colour|animal|story]?", "I like blue, foxes, and stories with a happy end."),
    (
        "[Tell me a joke|Do you know a joke|Make me laugh][.|]",
        "Why did the clock go to school? [Because it wanted to tell the time.|It wanted to learn the time.]",
    ),
    (
        "[What is the weather like|What is the weather today|Will it rain today]?",
        "I cannot look out of the window, but I hope that the sun is shining.",
    ),
    ("[What time is it|What day is it today]?", "I do not have a clock, so I cannot tell you."),
    (
        "[I am sad|I feel sad|I am not happy][.|]",
        "I am sorry to hear that. [Would you like to hear a story?|A walk and a cup of tea may help.]",
    ),
    ("[I am happy|I feel good][.|]", "That is good to hear! [Would you like to hear a story?|Tell me more.]"),
    (
        "[Yes|Yes please|Okay|Sure|No|No thanks|Good|Nice][.|!|]",
        "Very well. [You can ask me for a story or a fact.|What would you like to know?]",
    ),
)
IDENTITY = (
    "[Who are you|What are you|What is your name|Tell me about yourself|Who made you|What are you "
    "called|Introduce yourself]"
)
UNKNOWN = (
    (
        "[What|Who] [is|was] [the president|the best {o}|the price of a {o}|the meaning of life|a {o} "
        "for|mathematics]?"
    ),
    (
        "[How do I|How can I|Please] [install|repair|compile|sell|translate] [my|a|the] "
        "[{o}|program|phone|engine|server|letter][?|.|]"
    ),
    (
        "[Write|Give me|Show me] [some code|a program|a function|a list of prices|an email|the news|a "
        "recipe for {D}][.|]"
    ),
    (
        "[Why|When] [did|does|will] [the {o}|the {A}|my {E}|the world|the king|the war|the train] "
        "[end|begin|leave|break|come back]?"
    ),
    (
        "[Explain|Define|Describe] [quantum physics|gravity|democracy|the stock "
        "market|history|chemistry|music theory][.|]"
    ),
    "[Can you|Could you] [drive|cook|call {F}|open the {o}|send a message|buy {D}|play chess|sing]?",
)
SORRY = (
    "I am sorry, I do not know that. I am only a very small model. "
    "[You could ask me for a story about a {A}.|Ask me for a story, an animal or a colour.]"
)
SYSTEM_PLAIN = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Be kind and helpful.",
    "Answer the questions of the user.",
)
SYSTEM_BRIEF = ("Answer briefly.", "Answer in one short sentence.", "Be brief.")
SYSTEM_NAME = (
    "You are {N}.",
    "Your name is {N}.",
    "You are {N}, a friendly assistant.",
    "You are a helpful assistant called {N}.",
)
# characters of questions that mean nothing
NOISE = (
    "abcdefghij klmnop qrstuv wxyz",
    "0123456789 +-*/",
    "äöüßéèñçø ",
    "αβγδε абвгд",
    "你好世界 日本",
    "😀🎉🌍 ",
)
